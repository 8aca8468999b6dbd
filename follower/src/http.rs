//! The control port. `/version`, `/livez` and `/readyz` are open; everything else needs the token. Queries read on
//! connections of their own, so they never wait for the apply thread nor it for them.

mod schema;
mod sql;
mod verify;

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::apply::Handle;
use crate::config::Secret;
use crate::state::State;

/// Longest request body.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) state: State,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) auth_token: Option<Secret>,
    /// The apply thread, while there is one.
    pub(crate) control: watch::Receiver<Option<Handle>>,
    pub(crate) queries: sql::Queries,
}

impl Http {
    pub(crate) fn new(
        state: State,
        metrics: PrometheusHandle,
        auth_token: Option<Secret>,
        control: watch::Receiver<Option<Handle>>,
    ) -> Self {
        Self {
            state,
            metrics,
            auth_token,
            control,
            queries: sql::Queries::default(),
        }
    }
}

/// The routes.
pub(crate) fn router(http: Http) -> Router {
    let protected = Router::new()
        .route("/metrics", get(metrics))
        .route("/schema", get(schema::schema))
        .route("/execute-sql-read", post(sql::execute))
        .route("/verify/hold", post(verify::hold))
        .route("/verify/digest", post(verify::digest))
        .route("/verify/release", post(verify::release))
        .route_layer(middleware::from_fn_with_state(http.clone(), authorize));
    Router::new()
        .route("/version", get(version))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .merge(protected)
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .layer(middleware::from_fn_with_state(http.clone(), boot_id))
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(http)
}

/// An answer that is an error, in the form that clients read; with a code where programs tell several apart.
pub(crate) struct Failure(StatusCode, String, Option<&'static str>);

impl Failure {
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into(), None)
    }

    pub(crate) fn conflict(code: &'static str, text: impl Into<String>) -> Self {
        Self(StatusCode::CONFLICT, text.into(), Some(code))
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, text.into(), None)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(status, error, code) = self;
        let body = match code {
            Some(code) => json!({"error": error, "code": code}),
            None => json!({"error": error}),
        };
        (status, Json(body)).into_response()
    }
}

/// A JSON body, whatever its content type says.
pub(crate) fn parse<T: for<'de> serde::Deserialize<'de>>(body: &[u8]) -> Result<T, Failure> {
    let value: Value =
        serde_json::from_slice(body).map_err(|_no_json| Failure::bad("invalid JSON body"))?;
    serde_json::from_value(value).map_err(|error| Failure::bad(format!("invalid body: {error}")))
}

async fn authorize(Shared(http): Shared<Http>, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    match token_matches(http.auth_token.as_ref(), given) {
        true => next.run(request).await,
        false => Failure(StatusCode::UNAUTHORIZED, "unauthorized".to_owned(), None).into_response(),
    }
}

/// True when no token is asked for, or the header carries it. Every byte is looked at, whatever differs.
fn token_matches(wanted: Option<&Secret>, header: Option<&str>) -> bool {
    let Some(wanted) = wanted else { return true };
    let given = header
        .and_then(|header| header.strip_prefix("Bearer "))
        .unwrap_or_default();
    let wanted = wanted.expose();
    let differs = given
        .bytes()
        .zip(wanted.bytes())
        .fold(0, |differs, (a, b)| differs | (a ^ b));
    given.len() == wanted.len() && differs == 0
}

async fn boot_id(Shared(http): Shared<Http>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&http.state.boot_id()) {
        response.headers_mut().insert("rindle-boot-id", value);
    }
    response
}

async fn not_found() -> Response {
    Failure(StatusCode::NOT_FOUND, "not found".to_owned(), None).into_response()
}

async fn version() -> Json<Value> {
    Json(
        json!({"app": "rindle", "service": "rindled", "version": env!("CARGO_PKG_VERSION"), "sha": "unknown"}),
    )
}

async fn livez() -> Json<Value> {
    Json(json!({"live": true}))
}

async fn readyz(Shared(http): Shared<Http>) -> Response {
    let view = http.state.view();
    let status = match view.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(view)).into_response()
}

async fn metrics(Shared(http): Shared<Http>) -> Response {
    let view = http.state.view();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name).set(value);
    gauge("rindle_up", 1.0);
    gauge("rindle_follower_ready", f64::from(u8::from(view.ready)));
    gauge("rindle_follower_halted", f64::from(u8::from(view.halted)));
    gauge("rindle_follower_applied_seq", view.applied_seq.0 as f64);
    gauge("rindle_follower_applied_lsn", view.applied_lsn.0 as f64);
    gauge("rindle_follower_head_seq", view.head.head_seq.0 as f64);
    gauge(
        "rindle_follower_through_lsn",
        view.head.through_lsn.0 as f64,
    );
    gauge("rindle_follower_lag_bytes", view.lag_bytes as f64);
    gauge("rindle_follower_staleness_seconds", view.lag_seconds);
    gauge(
        "rindle_follower_connected",
        f64::from(u8::from(view.gateway.connected)),
    );
    let text = http.metrics.render();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_let_in() {
        let token = Secret::new("t0ken");
        assert!(token_matches(Some(&token), Some("Bearer t0ken")));
        for wrong in [
            None,
            Some("t0ken"),
            Some("Bearer t0ke"),
            Some("Bearer t0kenn"),
            Some("bearer t0ken"),
        ] {
            assert!(!token_matches(Some(&token), wrong), "{wrong:?}");
        }
        assert!(token_matches(None, None));
    }
}
