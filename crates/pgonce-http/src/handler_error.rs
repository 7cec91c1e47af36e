//! The error of a handler: what the database said, or an answer of its own.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse, Response};
use pgonce::Error;

use crate::Problem;

/// The error of a handler of an atomic route.
///
/// `?` turns the errors of both drivers and of pgonce into it. The layer then does what is right
/// for each: a deadlock or a lost connection is tried again, a [`pgonce::Failure`] is remembered,
/// and of anything else nothing is kept. A [`Problem`], or any response by
/// [`HandlerError::answer`], is an answer and goes by the route's policy.
#[derive(Debug)]
pub struct HandlerError(Kind);

#[derive(Debug)]
enum Kind {
    Error(Box<Error>),
    Answer(Box<Response>),
}

impl HandlerError {
    /// Any response, as an error.
    pub fn answer(response: impl IntoResponse) -> Self {
        Self(Kind::Answer(Box::new(response.into_response())))
    }
}

impl<E: Into<Error>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self(Kind::Error(Box::new(error.into())))
    }
}

impl From<Problem> for HandlerError {
    fn from(problem: Problem) -> Self {
        Self::answer(problem)
    }
}

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        match self.0 {
            Kind::Answer(response) => *response,
            Kind::Error(error) => {
                let mut response = Problem::from(&*error).into_response();
                response.extensions_mut().insert(Carried::new(*error));
                response
            }
        }
    }
}

/// The error itself, on its way to the layer.
#[derive(Clone)]
pub(crate) struct Carried(Arc<Mutex<Option<Error>>>);

impl Carried {
    fn new(error: Error) -> Self {
        Self(Arc::new(Mutex::new(Some(error))))
    }

    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
