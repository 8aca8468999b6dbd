//! Which bucket, and where: from the configuration, and where it is silent from the usual variables.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::ArchiveError;

/// A bucket, as far as it can be told without asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Settings {
    /// Its name.
    pub bucket: String,
    /// Before every key, with its slash; or nothing.
    pub(super) prefix: String,
    /// Another endpoint than that of AWS.
    pub(super) endpoint: Option<String>,
    /// Region that requests are signed for.
    pub(super) region: String,
    /// Credentials stand in this file; none looks where the usual order says.
    pub(super) profile_file: Option<PathBuf>,
    /// Any answer, and each list, comes within this time.
    pub(super) answers_within: Duration,
}

/// What may be left out of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Given<'a> {
    /// `bucket`.
    pub bucket: Option<&'a str>,
    /// `prefix`.
    pub prefix: Option<&'a str>,
    /// `endpoint`.
    pub endpoint: Option<&'a str>,
    /// `region`.
    pub region: Option<&'a str>,
}

/// A server that needs longer is as good as away.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Servers that are not AWS take this region for granted.
const ANY_REGION: &str = "us-east-1";

impl S3Settings {
    /// Settings from a configuration and `env`, which gives a variable of the environment.
    ///
    /// # Errors
    /// With what is missing or cannot be.
    pub fn resolve(
        given: &Given<'_>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ArchiveError> {
        let or_env = |given: Option<&str>, names: &[&str]| {
            let given = given.map(str::to_owned);
            let set = names.iter().find_map(|name| env(name));
            given.or(set).filter(|value| !value.is_empty())
        };
        let unfit = |what: String, next: &'static str| ArchiveError::Unsupported { what, next };
        let bucket = or_env(given.bucket, &["AWS_BUCKET"])
            .ok_or_else(|| unfit("no bucket is named".to_owned(), "set bucket, or AWS_BUCKET"))?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_name) {
            return Err(unfit(
                format!("{bucket:?} is no name of a bucket"),
                "give the name alone, without s3:// or a path; a path goes into prefix",
            ));
        }
        let prefix = or_env(given.prefix, &["RINDLE_BACKUP_PREFIX"]).unwrap_or_default();
        let endpoint = or_env(
            given.endpoint,
            &["AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        );
        if let Some(endpoint) = &endpoint {
            check_endpoint(endpoint, env("AWS_ALLOW_HTTP").as_deref())?;
        }
        let region = or_env(given.region, &["AWS_REGION", "AWS_DEFAULT_REGION"])
            .or_else(|| endpoint.as_ref().map(|_| ANY_REGION.to_owned()))
            .ok_or_else(|| unfit("no region is named".to_owned(), "set region, or AWS_REGION"))?;
        Ok(Self {
            prefix: checked_prefix(&prefix)?,
            bucket,
            endpoint: endpoint.map(|it| it.trim_end_matches('/').to_owned()),
            region,
            profile_file: None,
            answers_within: ANSWERS_WITHIN,
        })
    }

    /// Takes the credentials from the default profile of this file.
    #[must_use]
    pub fn with_profile_file(self, path: PathBuf) -> Self {
        Self {
            profile_file: Some(path),
            ..self
        }
    }

    /// Waits so long for an answer, and longer by the size of what is sent.
    #[must_use]
    pub fn with_answers_within(self, answers_within: Duration) -> Self {
        Self {
            answers_within,
            ..self
        }
    }

    /// Endpoint, bucket and prefix.
    pub(super) fn place(&self) -> String {
        let endpoint = self.endpoint.as_deref().unwrap_or("aws");
        format!("{endpoint}/{}/{}", self.bucket, self.prefix)
    }

    pub(super) fn is_plain_http(&self) -> bool {
        let endpoint = self.endpoint.as_deref();
        endpoint.is_some_and(|it| it.starts_with("http://"))
    }
}

/// Without TLS whoever is on the way reads every row, and the session tokens.
fn check_endpoint(endpoint: &str, allow_http: Option<&str>) -> Result<(), ArchiveError> {
    let unfit = |what: &str, next: &'static str| {
        Err(ArchiveError::Unsupported {
            what: format!("endpoint {endpoint:?} {what}"),
            next,
        })
    };
    let Some((scheme, rest)) = endpoint.split_once("://") else {
        return unfit("has no scheme", "write it as https://host:port");
    };
    let host = rest.split(['/', ':']).next().unwrap_or_default();
    let is_local = host == "localhost" || host.starts_with("127.") || rest.starts_with("[::1]");
    match scheme {
        "https" => Ok(()),
        "http" if is_local || allow_http.is_some_and(|it| it == "true" || it == "1") => Ok(()),
        "http" => unfit(
            "is not encrypted",
            "use https, or set AWS_ALLOW_HTTP=true when the network is yours",
        ),
        _ => unfit("is neither http nor https", "write it as https://host:port"),
    }
}

/// As it stands before keys. Characters that need escaping would be written otherwise by each tool.
fn checked_prefix(prefix: &str) -> Result<String, ArchiveError> {
    let prefix = prefix.trim_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.!/=+".contains(c);
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if !prefix.chars().all(is_plain) || !prefix.split('/').all(is_part) {
        return Err(ArchiveError::Unsupported {
            what: format!("prefix {prefix:?} holds what keys should not"),
            next: "use letters, digits and - _ . ! = + between slashes; no part begins with a dot",
        });
    }
    Ok(format!("{prefix}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(given: &Given<'_>, env: &[(&str, &str)]) -> Result<S3Settings, String> {
        let env = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        S3Settings::resolve(given, env).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_configuration_leaves_out_comes_from_the_environment() {
        let env = [
            ("AWS_BUCKET", "archive"),
            ("AWS_REGION", "eu-central-1"),
            ("RINDLE_BACKUP_PREFIX", "/a/b/"),
            ("AWS_ENDPOINT", "https://s3.example:9000/"),
        ];
        let settings = resolved(&Given::default(), &env).unwrap();
        assert_eq!(
            (&*settings.bucket, &*settings.prefix, &*settings.region),
            ("archive", "a/b/", "eu-central-1")
        );
        assert_eq!(
            settings.endpoint.as_deref(),
            Some("https://s3.example:9000")
        );
        let given = Given {
            bucket: Some("mine"),
            region: Some("us-west-2"),
            ..Given::default()
        };
        let settings = resolved(&given, &env).unwrap();
        assert_eq!(
            (&*settings.bucket, &*settings.region),
            ("mine", "us-west-2")
        );
    }

    #[test]
    fn what_cannot_work_is_told_with_the_next_step() {
        let told = |given: &Given<'_>, words: &[&str]| {
            let told = resolved(given, &[]).unwrap_err();
            assert!(words.iter().all(|it| told.contains(it)), "{told}");
        };
        let named = Given {
            bucket: Some("mine"),
            ..Given::default()
        };
        told(&Given::default(), &["no bucket", "AWS_BUCKET"]);
        told(&named, &["no region", "AWS_REGION"]);
        let bucket = |bucket| Given {
            bucket: Some(bucket),
            ..Given::default()
        };
        told(&bucket("s3://mine/x"), &["no name of a bucket", "prefix"]);
        let endpoint = |endpoint| Given {
            endpoint: Some(endpoint),
            ..named.clone()
        };
        told(&endpoint("s3.example"), &["no scheme"]);
        told(
            &endpoint("http://s3.example"),
            &["not encrypted", "AWS_ALLOW_HTTP"],
        );
        told(&endpoint("ftp://s3.example"), &["neither http"]);
        let prefix = |prefix| Given {
            prefix: Some(prefix),
            region: Some("x"),
            ..named.clone()
        };
        told(&prefix("a//b"), &["prefix"]);
        told(&prefix("a b"), &["prefix"]);
        told(&prefix("a/../b"), &["prefix"]);
        let local = resolved(&endpoint("http://127.0.0.1:9000"), &[]).unwrap();
        assert!(local.is_plain_http() && local.region == ANY_REGION);
        let allowed = [("AWS_ALLOW_HTTP", "true")];
        assert!(resolved(&endpoint("http://s3.example"), &allowed).is_ok());
    }
}
