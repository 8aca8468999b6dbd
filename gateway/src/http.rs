//! Health, status and metrics over HTTP. `/version`, `/livez` and `/readyz` are open; the rest needs the token.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;

use crate::fanout::FollowerView;
use crate::lag::Waiting;
use crate::pg::endpoint::Secret;
use crate::state::State;

/// What the handlers share.
#[derive(Clone)]
pub struct Http {
    /// The gateway's state.
    pub state: State,
    /// Where metrics are rendered from.
    pub metrics: PrometheusHandle,
    /// The token that protected routes ask for.
    pub auth_token: Option<Secret>,
}

/// The routes.
pub fn router(http: Http) -> Router {
    let protected = Router::new()
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route_layer(middleware::from_fn_with_state(http.clone(), authorize));
    Router::new()
        .route("/version", get(version))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .merge(protected)
        .with_state(http)
}

async fn authorize(Shared(http): Shared<Http>, request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    match token_matches(http.auth_token.as_ref(), given) {
        true => next.run(request).await,
        false => (
            StatusCode::UNAUTHORIZED,
            Json(json!({"error": "unauthorized"})),
        )
            .into_response(),
    }
}

/// True when no token is asked for, or the header carries it. Every byte is looked at, whatever differs.
pub(crate) fn token_matches(wanted: Option<&Secret>, header: Option<&str>) -> bool {
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

async fn version() -> Response {
    Json(json!({"app": "rindle", "service": "rindle-pg-gateway", "version": env!("CARGO_PKG_VERSION")}))
        .into_response()
}

async fn livez() -> Response {
    Json(json!({"live": true})).into_response()
}

async fn readyz(Shared(http): Shared<Http>) -> Response {
    let view = http.state.open_view();
    let status = match view.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(view)).into_response()
}

async fn status(Shared(http): Shared<Http>) -> Response {
    Json(http.state.view()).into_response()
}

async fn metrics(Shared(http): Shared<Http>) -> Response {
    let view = http.state.view();
    let gauge = |name: &'static str, value: u64| metrics::gauge!(name).set(value as f64);
    gauge("rindle_gateway_up", 1);
    gauge("rindle_gateway_ready", u64::from(view.ready));
    gauge("rindle_gateway_head_seq", view.head_seq);
    gauge("rindle_gateway_durable_seq", view.durable_seq);
    gauge("rindle_gateway_unshipped_bytes", view.unshipped_bytes);
    gauge("rindle_gateway_source_lsn", view.source_end.0);
    gauge("rindle_gateway_received_lsn", view.received.0);
    gauge("rindle_gateway_archived_lsn", view.archived.0);
    gauge("rindle_gateway_acked_lsn", view.acked.0);
    let followers = view.followers.unwrap_or_default();
    gauge("rindle_gateway_followers", followers.len() as u64);
    let hops = [
        ("received", view.lag.received),
        ("archived", view.lag.archived),
        ("acked", view.lag.acked),
        ("sent", slowest(&followers)),
    ];
    for (hop, lag) in hops {
        // What is not known is not a number, rather than the last one that was known.
        let (bytes, seconds) =
            lag.map_or((f64::NAN, f64::NAN), |lag| (lag.bytes as f64, lag.seconds));
        metrics::gauge!("rindle_gateway_lag_bytes", "hop" => hop).set(bytes);
        metrics::gauge!("rindle_gateway_lag_seconds", "hop" => hop).set(seconds);
    }
    let text = http.metrics.render();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// The follower that is furthest behind; unknown when one's lag is.
fn slowest(followers: &[FollowerView]) -> Option<Waiting> {
    let none = Waiting::new(0, Duration::ZERO);
    followers.iter().try_fold(none, |worst, follower| {
        let lag = follower.lag?;
        Some(Waiting {
            bytes: worst.bytes.max(lag.bytes),
            seconds: worst.seconds.max(lag.seconds),
        })
    })
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
