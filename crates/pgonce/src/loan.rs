//! Something lent to the user's code that finds its way back, however that code ends.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The owner's side of a [`Loan`].
pub struct Lender<T>(Arc<Mutex<Option<T>>>);

impl<T> Lender<T> {
    /// Holds `item` until it is lent.
    pub fn new(item: T) -> Self {
        Self(Arc::new(Mutex::new(Some(item))))
    }

    /// Lends the item. `None`: a loan is out already, or the item was taken.
    pub fn lend(&self) -> Option<Loan<T>> {
        let item = self.take()?;
        Some(Loan {
            item: Some(item),
            lender: Some(self.clone()),
        })
    }

    /// Takes the item and ends the loan. `None`: a loan is still out, or its borrower kept the item.
    pub fn take(&self) -> Option<T> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Lender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Lender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").finish_non_exhaustive()
    }
}

/// An item in the user's hands. Dropped, it goes back to its [`Lender`], if it has one.
pub struct Loan<T> {
    item: Option<T>,
    lender: Option<Lender<T>>,
}

impl<T> Loan<T> {
    /// An item that nobody expects back.
    pub(crate) fn owned(item: T) -> Self {
        Self {
            item: Some(item),
            lender: None,
        }
    }

    /// Lends an item out. The lender is what gets it back.
    pub(crate) fn lend_out(&mut self) -> Lender<T> {
        let lender = Lender(Arc::new(Mutex::new(None)));
        self.lender = Some(lender.clone());
        lender
    }

    /// Takes the item: it does not go back.
    pub(crate) fn into_inner(mut self) -> T {
        self.lender = None;
        self.item.take().expect("only into_inner and drop take it")
    }
}

impl<T> Deref for Loan<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item
            .as_ref()
            .expect("only into_inner and drop take it")
    }
}

impl<T> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item
            .as_mut()
            .expect("only into_inner and drop take it")
    }
}

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        if let (Some(item), Some(lender)) = (self.item.take(), self.lender.take()) {
            *lender.lock() = Some(item);
        }
    }
}

impl<T> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_goes_back_unless_its_borrower_keeps_it() {
        let lender = Lender::new(7);
        let loan = lender.lend().unwrap();
        assert!(lender.lend().is_none() && lender.take().is_none());
        drop(loan);
        assert_eq!(lender.lend().unwrap().into_inner(), 7);
        assert!(lender.take().is_none());

        let mut owned = Loan::owned(8);
        let lender = owned.lend_out();
        drop(owned);
        assert_eq!(lender.take(), Some(8));
    }
}
