//! What an owner of a value does as the value does it, as `Box` has it.

/// The traits of `$owner`, which dereferences to `T`.
macro_rules! as_its_value {
    ([$($generics:tt)*] $owner:ty) => {
        impl<$($generics)*> AsRef<T> for $owner {
            fn as_ref(&self) -> &T {
                self
            }
        }

        impl<$($generics)*> AsMut<T> for $owner {
            fn as_mut(&mut self) -> &mut T {
                self
            }
        }

        impl<$($generics)*> core::borrow::Borrow<T> for $owner {
            fn borrow(&self) -> &T {
                self
            }
        }

        impl<$($generics)*> core::borrow::BorrowMut<T> for $owner {
            fn borrow_mut(&mut self) -> &mut T {
                self
            }
        }

        impl<$($generics)*> core::fmt::Debug for $owner
        where
            T: core::fmt::Debug,
        {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<$($generics)*> core::fmt::Display for $owner
        where
            T: core::fmt::Display,
        {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                (**self).fmt(f)
            }
        }

        /// The address of the value.
        impl<$($generics)*> core::fmt::Pointer for $owner {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Pointer::fmt(&&raw const **self, f)
            }
        }

        impl<$($generics)*> PartialEq for $owner
        where
            T: PartialEq,
        {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl<$($generics)*> Eq for $owner where T: Eq {}

        impl<$($generics)*> PartialOrd for $owner
        where
            T: PartialOrd,
        {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                (**self).partial_cmp(&**other)
            }
        }

        impl<$($generics)*> Ord for $owner
        where
            T: Ord,
        {
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                (**self).cmp(&**other)
            }
        }

        impl<$($generics)*> core::hash::Hash for $owner
        where
            T: core::hash::Hash,
        {
            fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
                (**self).hash(state);
            }
        }
    };
}

pub(super) use as_its_value;
