//! The states that are allowed after a power cut.
//!
//! Some of the operations that were begun have happened: all that were promised, and with each all
//! earlier ones on the same directory, inode or content. docs/disk-format.md defines the promises
//! of `fsync`: for a file its content, its attributes and its names, for a directory its entries.
//! The content of a file may be older than its attributes and its names. But where a file took the
//! name of another by a rename, its content is there as of the rename (decision 23).

use warren_proto::FileKind;

use super::operation::{Step, Touched, base};
use super::tree::{Tree, View};

/// The progress of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    /// Steps begun, and steps answered.
    pub begun: usize,
    pub answered: usize,
}

/// The effect of a sequence without a power cut.
pub(super) struct Promises<'a> {
    steps: &'a [Step],
    /// The objects that each step changes, or makes durable.
    touched: Vec<Vec<Touched>>,
    pub end: Tree,
}

impl<'a> Promises<'a> {
    pub(super) fn new(steps: &'a [Step]) -> Self {
        let (mut tree, mut touched) = (base(), Vec::new());
        for (number, step) in steps.iter().enumerate() {
            touched.push(match step {
                Step::Do(operation) => {
                    operation.apply(number, &mut tree).expect("a sequence that can be done")
                }
                Step::Fsync(path) => promised(path, false, &tree),
                Step::Fdatasync(path) => promised(path, true, &tree),
                Step::Sync => Vec::new(),
            });
        }
        Self { steps, touched, end: tree }
    }

    fn is_operation(&self, step: usize) -> bool {
        matches!(self.steps[step], Step::Do(_))
    }

    /// Whether `later` cannot be durable without `earlier`.
    fn rests_on(&self, later: usize, earlier: usize) -> bool {
        let later = &self.touched[later];
        self.touched[earlier].iter().any(|touched| match touched {
            Touched::Content(node) if later.contains(&Touched::Kept(*node)) => true,
            touched => later.contains(touched),
        })
    }

    /// Whether an answered step has promised an operation.
    fn is_promised(&self, operation: usize, answered: usize) -> bool {
        (operation + 1..answered)
            .filter(|step| !self.is_operation(*step))
            .any(|step| self.steps[step] == Step::Sync || self.rests_on(step, operation))
    }

    /// All views that are allowed if the power is cut now.
    pub(super) fn allowed(&self, progress: Progress) -> Vec<View> {
        let operations: Vec<usize> =
            (0..progress.begun).filter(|step| self.is_operation(*step)).collect();
        let mut views = Vec::new();
        for chosen in 0_u32..1 << operations.len() {
            let happened = |step: &usize| {
                let at = operations.iter().position(|operation| operation == step);
                at.is_some_and(|at| chosen & 1 << at != 0)
            };
            if operations.iter().all(|step| self.agrees(*step, &happened, progress.answered)) {
                views
                    .extend(self.view_of(operations.iter().copied().filter(|step| happened(step))));
            }
        }
        views
    }

    /// Whether it is consistent with the other operations that this one happened or not.
    fn agrees(&self, step: usize, happened: &impl Fn(&usize) -> bool, answered: usize) -> bool {
        match happened(&step) {
            false => !self.is_promised(step, answered),
            true => (0..step)
                .filter(|earlier| self.is_operation(*earlier) && self.rests_on(step, *earlier))
                .all(|earlier| happened(&earlier)),
        }
    }

    fn view_of(&self, operations: impl Iterator<Item = usize>) -> Option<View> {
        let mut tree = base();
        for number in operations {
            let Step::Do(operation) = self.steps[number] else { continue };
            operation.apply(number, &mut tree)?;
        }
        Some(tree.view())
    }
}

fn promised(path: &str, data_only: bool, tree: &Tree) -> Vec<Touched> {
    let node = tree.at(path).expect("what is synced is there");
    let mut promised = vec![Touched::Content(node), Touched::Name(node)];
    if !data_only {
        promised.push(Touched::Attributes(node));
    }
    if tree.nodes[&node].kind == FileKind::Directory {
        promised.push(Touched::Entries(node));
    }
    promised
}

#[cfg(test)]
mod tests {
    use super::super::operation::Operation;
    use super::*;

    fn count(steps: &[Step], begun: usize, answered: usize) -> usize {
        Promises::new(steps).allowed(Progress { begun, answered }).len()
    }

    #[test]
    fn what_is_synced_must_be_there_and_the_rest_may() {
        let append = Step::Do(Operation::Append("A/foo", 100));
        let chmod = Step::Do(Operation::Chmod("A/foo"));
        let fsync = Step::Fsync("A/foo".into());
        let steps = [append.clone(), fsync.clone(), chmod.clone()];
        assert_eq!(
            [(0, 0), (1, 1), (2, 1), (2, 2), (3, 3)].map(|(b, a)| count(&steps, b, a)),
            [1, 2, 2, 1, 2]
        );
        // Content and attributes are independent; fdatasync promises the content.
        assert_eq!(count(&[append.clone(), chmod.clone()], 2, 2), 4);
        let data = Step::Fdatasync("A/foo".into());
        assert_eq!(count(&[append.clone(), chmod, data], 3, 3), 2);
        // Two names in one directory: never the second without the first.
        let create = Step::Do(Operation::Create(("A", "bar")));
        let mkdir = Step::Do(Operation::Mkdir(("A", "new")));
        assert_eq!(count(&[create.clone(), mkdir.clone()], 2, 2), 3);
        let other = Step::Do(Operation::Mkdir(("B", "new")));
        assert_eq!(count(&[create.clone(), other.clone()], 2, 2), 4);
        assert_eq!(count(&[create.clone(), other, Step::Fsync("B".into())], 3, 3), 2);
        // Where a file has the name of another, it has its content.
        let replace = Step::Do(Operation::Rename(("A", "foo"), ("A", "other")));
        assert_eq!(count(&[append.clone(), replace.clone()], 2, 2), 3);
        assert_eq!(count(&[append.clone(), replace.clone(), Step::Fsync("A".into())], 3, 3), 1);
        // A later change is independent of that.
        let behind = Step::Do(Operation::Append("A/other", 100));
        assert_eq!(count(&[replace, behind], 2, 2), 4);
        // A new file's name is synced with the file, and with the directory.
        for path in ["A/bar", "A"] {
            assert_eq!(count(&[create.clone(), Step::Fsync(path.into())], 2, 2), 1);
        }
        assert_eq!(count(&[create, mkdir, append, Step::Sync], 4, 4), 1);
    }
}
