//! RouteGuide served by tonic on the current-thread flavour of tokio, for measurements beside clgrpc
//! and grpc-go. The handlers do the least that their calls can mean: streams are answered from where
//! the data is, without tasks or channels of their own, and RouteChat answers each note with itself.
//!
//! usage: tonic-peer [FEATURES.json]; prints "listening on HOST:PORT" and serves until
//! a signal ends it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Request, Response, Status, Streaming};

use pb::route_guide_server::{RouteGuide, RouteGuideServer};
use pb::{Feature, Point, Rectangle, RouteNote, RouteSummary};

mod pb {
    tonic::include_proto!("routeguide");
}

type Outcome<T> = Result<Response<T>, Status>;

struct Guide {
    features: Arc<Vec<Feature>>,
}

impl Guide {
    fn find(&self, point: &Point) -> Option<&Feature> {
        self.features
            .iter()
            .find(|feature| feature.location.as_ref() == Some(point))
    }
}

fn inside(point: &Point, area: &Rectangle) -> bool {
    let (lo, hi) = (area.lo.unwrap_or_default(), area.hi.unwrap_or_default());
    let between = |a: i32, x: i32, b: i32| a.min(b) <= x && x <= a.max(b);
    between(lo.latitude, point.latitude, hi.latitude)
        && between(lo.longitude, point.longitude, hi.longitude)
}

/// The great-circle distance between two points given in units of 1e-7 degrees.
fn metres(a: &Point, b: &Point) -> f64 {
    const EARTH_RADIUS: f64 = 6_371_000.0;
    let radians = |e7: i32| (f64::from(e7) / 1e7).to_radians();
    let haversine = |angle: f64| (angle / 2.0).sin().powi(2);
    let h = haversine(radians(b.latitude) - radians(a.latitude))
        + radians(a.latitude).cos()
            * radians(b.latitude).cos()
            * haversine(radians(b.longitude) - radians(a.longitude));
    2.0 * EARTH_RADIUS * h.sqrt().atan2((1.0 - h).sqrt())
}

#[tonic::async_trait]
impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Outcome<Feature> {
        let point = request.into_inner();
        Ok(Response::new(match self.find(&point) {
            Some(feature) => feature.clone(),
            None => Feature {
                location: Some(point),
                ..Feature::default()
            },
        }))
    }

    type ListFeaturesStream = Pin<Box<dyn Stream<Item = Result<Feature, Status>> + Send>>;

    async fn list_features(
        &self,
        request: Request<Rectangle>,
    ) -> Outcome<Self::ListFeaturesStream> {
        let area = request.into_inner();
        let features = self.features.clone();
        let found = (0..features.len()).filter_map(move |index| {
            let feature = &features[index];
            let wanted = inside(&feature.location.unwrap_or_default(), &area);
            wanted.then(|| Ok(feature.clone()))
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(found))))
    }

    async fn record_route(&self, request: Request<Streaming<Point>>) -> Outcome<RouteSummary> {
        let begin = Instant::now();
        let mut points = request.into_inner();
        let mut summary = RouteSummary::default();
        let mut last: Option<Point> = None;
        while let Some(point) = points.next().await {
            let point = point?;
            summary.point_count += 1;
            if self.find(&point).is_some() {
                summary.feature_count += 1;
            }
            if let Some(last) = &last {
                summary.distance += metres(last, &point) as i32;
            }
            last = Some(point);
        }
        summary.elapsed_time = begin.elapsed().as_secs() as i32;
        Ok(Response::new(summary))
    }

    type RouteChatStream = Streaming<RouteNote>;

    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Outcome<Self::RouteChatStream> {
        Ok(Response::new(request.into_inner()))
    }
}

fn read_features(path: &str) -> Result<Vec<Feature>, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    let entries: serde_json::Value = serde_json::from_str(&text)?;
    let number = |value: &serde_json::Value| value.as_i64().unwrap_or_default() as i32;
    Ok(entries
        .as_array()
        .ok_or("the features are no array")?
        .iter()
        .map(|entry| Feature {
            name: entry["name"].as_str().unwrap_or_default().to_owned(),
            location: Some(Point {
                latitude: number(&entry["location"]["latitude"]),
                longitude: number(&entry["location"]["longitude"]),
            }),
        })
        .collect())
}

async fn serve(features: Vec<Feature>) -> Result<(), Box<dyn std::error::Error>> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    println!("listening on {}", incoming.local_addr()?);
    Server::builder()
        .add_service(RouteGuideServer::new(Guide {
            features: Arc::new(features),
        }))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "examples/features.json".to_owned());
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(read_features(&path)?))
}
