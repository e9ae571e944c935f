package config

import (
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

func defaultConfig() Config {
	return Config{
		Server: Server{
			Listen: "127.0.0.1:8080", MaxBody: 1 << 20, BodyMemory: 64 << 20, BodyMinRate: 4 << 10,
			ShutdownGrace:        15 * time.Second,
			TrustedProxiesHeader: clientaddr.DefaultHeader,
		},
		Health: Health{Listen: "127.0.0.1:9090"},
		Redis: Redis{
			DataDir: "./hubrelay-data", Prefix: "hubrelay", Partitions: 1, FullAt: 90,
			Retention: Retention{History: 24 * time.Hour, MaxLen: 1_000_000},
		},
		Websocket: Websocket{
			Queue: 1 << 20, Recent: 16 << 20, PingInterval: 25 * time.Second, PongTimeout: 50 * time.Second,
			Compression: Compression{MinSize: 256, CPU: 100 * time.Millisecond},
		},
		Audit:   Audit{MaxLen: 100_000},
		History: History{Deliveries: HistoryAll, MaxAge: 24 * time.Hour, MaxBytes: 64 << 20},
		Auth: Auth{
			TokenTTL: time.Minute, StreamTTL: 24 * time.Hour,
			JWT: JWT{
				Algorithms:   []string{"RS256", "PS256", "ES256", "EdDSA"},
				AccountClaim: "account_id", HubsClaim: "hubs", CapabilitiesClaim: "capabilities",
			},
			Forward: Forward{Timeout: 2 * time.Second, CacheTTL: time.Minute, StaleTTL: 5 * time.Minute},
		},
		Quotas: Quotas{
			Key:      Quota{Notifications: 50_000, Bytes: 32 << 20, Burst: 4 * time.Second},
			Account:  Quota{Notifications: 50_000, Bytes: 32 << 20, Burst: 4 * time.Second},
			IP:       Quota{Burst: 4 * time.Second},
			Requests: RequestQuota{PerSecond: 50, Burst: 10 * time.Second},
		},
		Migration: Migration{ServerConcurrency: 2, ExpireAfter: 24 * time.Hour, StallTimeout: 30 * time.Minute},
		Log:       Log{Level: "info", Format: "auto"},
	}
}

// defaultSink returns the defaults, with the retry schedule of Standard Webhooks 1.0.
func defaultSink() Sink {
	return Sink{
		From: "end", Timeout: 15 * time.Second, Concurrency: 16, Backlog: 1_000_000, AccountShare: 50, Ordering: "none",
		DisableAfter: 120 * time.Hour, Digest: Digest{Max: 20}, Batch: Batch{Max: 100, By: "none"},
		Retry: Retry{
			Schedule: []time.Duration{
				5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
				10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
			},
			MaxAge: 96 * time.Hour,
		},
	}
}
