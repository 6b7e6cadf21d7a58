//! The Harvester-side load balancer: pools, LoadBalancer objects, health checks, admission webhook.
