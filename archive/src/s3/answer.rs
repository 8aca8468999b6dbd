//! What an answer that is no success means.
//!
//! Only four answers decide anything. Each needs the status *and* the code that S3 gives with it: a 404 of a proxy, or
//! of a bucket that is not there, is no proof that an object is absent.

use std::error::Error;
use std::io;
use std::time::Duration;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use super::identity::NoIdentity;
use crate::error::chain;
use crate::store::Problem;

/// What a caller may conclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// 412: something is there, or it has another version.
    Taken,
    /// 409: somebody else is writing it; nothing was stored by this request.
    Conflict,
    /// 404 of this very object.
    Absent,
    /// Nothing: it may have taken effect, or not.
    Other,
}

/// No success.
#[derive(Debug)]
pub(super) struct Unclear {
    status: Option<u16>,
    code: Option<String>,
    source: Box<dyn Error + Send + Sync>,
}

impl Unclear {
    /// No answer came in time.
    pub(super) fn late(limit: Duration) -> Self {
        Self::of(format!("no answer within {} s", limit.as_secs()))
    }

    /// Whoever gives credentials did not answer in time; the next call finds what he says.
    pub(super) fn nobody(limit: Duration) -> Self {
        let why = format!(
            "whoever gives them does not answer within {} s",
            limit.as_secs()
        );
        Self {
            source: NoIdentity(why).into(),
            ..Self::late(limit)
        }
    }

    pub(super) fn wrong_length(len: u64) -> Self {
        Self::of(format!(
            "the answer's body has not the {len} bytes that it announced"
        ))
    }

    pub(super) fn no_version() -> Self {
        Self::of("the server gave no ETag".to_owned())
    }

    fn of(text: String) -> Self {
        Self {
            status: None,
            code: None,
            source: text.into(),
        }
    }

    pub(super) fn answer(&self) -> Answer {
        match (self.status, self.code.as_deref()) {
            (Some(412), _) => Answer::Taken,
            (Some(409), Some("ConditionalRequestConflict")) => Answer::Conflict,
            (Some(404), Some("NoSuchKey")) => Answer::Absent,
            _ => Answer::Other,
        }
    }

    pub(super) fn problem(&self) -> Problem {
        match (self.status, self.code.as_deref()) {
            (_, Some("NoSuchBucket")) => Problem::NoBucket,
            (_, Some("InvalidObjectState")) => Problem::Frozen,
            (_, Some("ConditionalRequestConflict")) => Problem::Conflict,
            (Some(416), _) => Problem::Empty,
            (_, Some("RequestTimeTooSkewed")) => Problem::ClockSkewed,
            (_, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired"))
            | (Some(401 | 403), _) => Problem::Unauthorized,
            (Some(301 | 307), _)
            | (_, Some("PermanentRedirect" | "AuthorizationHeaderMalformed")) => {
                Problem::OtherRegion
            }
            _ if self.source.is::<NoIdentity>() => Problem::Unauthorized,
            _ => Problem::Unavailable,
        }
    }

    pub(super) fn into_io(self) -> io::Error {
        io::Error::other(self.source)
    }
}

/// All causes in one text: both libraries' errors repeat each other. That nobody tells who we are is one of its own.
fn source_of(error: &(dyn Error + 'static), text: String) -> Box<dyn Error + Send + Sync> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(nobody) = error.downcast_ref::<NoIdentity>() {
            return NoIdentity(nobody.0.clone()).into();
        }
        cause = error.source();
    }
    text.into()
}

/// Where the document of an error stands in its text: object_store gives both only there.
impl From<object_store::Error> for Unclear {
    fn from(error: object_store::Error) -> Self {
        let text = chain(&error);
        let redirected = text.contains("redirect without LOCATION").then_some(301);
        Self {
            status: status_in(&text).or(redirected),
            code: between(&text, "<Code>", "</Code>").map(str::to_owned),
            source: source_of(&error, text),
        }
    }
}

impl<E> From<SdkError<E>> for Unclear
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        let status = error.raw_response().map(|it| it.status().as_u16());
        let code = error.code().map(str::to_owned);
        // The SDK's own text is "service error"; what it knows stands in its causes.
        let text = chain(&error);
        Self {
            status,
            code,
            source: source_of(&error, text),
        }
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found)
}

/// `Server returned non-2xx status code: 404 Not Found: …`
fn status_in(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, code: Option<&str>) -> Unclear {
        Unclear {
            status: Some(status),
            code: code.map(str::to_owned),
            source: "x".into(),
        }
    }

    #[test]
    fn only_what_is_certain_decides() {
        for (status, code, answer) in [
            (412, Some("PreconditionFailed"), Answer::Taken),
            (409, Some("ConditionalRequestConflict"), Answer::Conflict),
            (404, Some("NoSuchKey"), Answer::Absent),
            (409, Some("OperationAborted"), Answer::Other),
            (404, Some("NoSuchBucket"), Answer::Other),
            (404, None, Answer::Other),
            (500, Some("InternalError"), Answer::Other),
            (503, Some("SlowDown"), Answer::Other),
            (403, Some("AccessDenied"), Answer::Other),
        ] {
            assert_eq!(answered(status, code).answer(), answer, "{status} {code:?}");
        }
    }

    #[test]
    fn what_an_operator_must_mend_is_named() {
        for (status, code, problem) in [
            (404, Some("NoSuchBucket"), Problem::NoBucket),
            (403, Some("RequestTimeTooSkewed"), Problem::ClockSkewed),
            (403, Some("SignatureDoesNotMatch"), Problem::Unauthorized),
            (400, Some("ExpiredToken"), Problem::Unauthorized),
            (301, None, Problem::OtherRegion),
            (403, Some("InvalidObjectState"), Problem::Frozen),
            (416, Some("InvalidRange"), Problem::Empty),
            (503, Some("SlowDown"), Problem::Unavailable),
        ] {
            assert_eq!(
                answered(status, code).problem(),
                problem,
                "{status} {code:?}"
            );
        }
    }

    #[test]
    fn status_and_code_are_read_from_the_text() {
        let text = "Object at location a not found: Error performing GET http://h/b/a in 1ms - Server returned \
            non-2xx status code: 404 Not Found: <?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>";
        assert_eq!(status_in(text), Some(404));
        assert_eq!(between(text, "<Code>", "</Code>"), Some("NoSuchKey"));
        assert_eq!(status_in("connection refused"), None);
    }
}
