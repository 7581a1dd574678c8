//! The cell that executes a request.

use alloc::vec::Vec;

use warren_base::{CellId, Ino, MapVersion, ShardId};
use warren_proto::Request;

/// The owner of every shard, at one version. A client's copy may be old: a cell that receives a
/// request for another's shard answers `Moved` and executes nothing.
/// The default is the map before the first, without shards.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardMap {
    version: MapVersion,
    owners: Vec<CellId>,
}

impl ShardMap {
    /// `owners` is indexed by shard number and not empty.
    pub fn new(version: MapVersion, owners: Vec<CellId>) -> Self {
        assert!(!owners.is_empty());
        Self { version, owners }
    }

    pub const fn version(&self) -> MapVersion {
        self.version
    }

    /// `None` for a shard that the volume does not have.
    pub fn owner(&self, shard: ShardId) -> Option<CellId> {
        self.owners.get(usize::from(shard.0)).copied()
    }

    /// The cell of a route. `near` executes requests for any cell.
    pub fn cell(&self, route: Route, near: CellId) -> Option<CellId> {
        match route {
            Route::Shard(shard) => self.owner(shard),
            Route::Any => Some(near),
        }
    }
}

/// The destination of a request, whatever the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    Shard(ShardId),
    Any,
}

impl Route {
    pub fn of(request: &Request) -> Self {
        request.shard().map_or(Self::Any, Self::Shard)
    }

    pub const fn to(ino: Ino) -> Self {
        Self::Shard(ino.shard())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_to_the_owner_of_its_shard() {
        let map = ShardMap::new(MapVersion(3), vec![CellId(1), CellId(0)]);
        let near = CellId(7);
        let ino = Ino::new(ShardId(1), 9);
        assert_eq!(Route::of(&Request::GetAttr { ino }), Route::to(ino));
        assert_eq!(map.cell(Route::to(ino), near), Some(CellId(0)));
        assert_eq!(map.cell(Route::of(&Request::Sync), near), Some(near));
        assert_eq!(map.owner(ShardId(2)), None);
    }
}
