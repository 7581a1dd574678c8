//! A first-in-first-out queue that returns `Full` instead of growing.

use alloc::collections::VecDeque;

/// The queue is full and returns the item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Full<T>(pub T);

/// Has room for a fixed number of items.
#[derive(Clone, Debug)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    limit: usize,
}

impl<T> BoundedQueue<T> {
    pub fn new(limit: usize) -> Self {
        assert!(limit > 0);
        Self { items: VecDeque::new(), limit }
    }

    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.is_full() {
            return Err(Full(item));
        }
        self.items.push_back(item);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.items.len() == self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_item_back() {
        let mut queue = BoundedQueue::new(1);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Err(Full(2)));
        assert_eq!(queue.pop(), Some(1));
        assert!(queue.is_empty());
    }
}
