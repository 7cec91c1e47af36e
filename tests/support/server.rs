/// A server of the test's own, or everybody's.
#[derive(Debug)]
pub enum Server<T: 'static> {
    /// It may be killed.
    Own(T),
    /// It may not.
    Shared(&'static T),
}

impl<T> std::ops::Deref for Server<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(server) => server,
            Self::Shared(server) => server,
        }
    }
}
