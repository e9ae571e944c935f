package config

import "time"

func (l *loader) websocket(w *Websocket) {
	between(l, "websocket.queue", w.Queue, 64<<10, 1<<30)
	between(l, "websocket.gather", w.Gather, 0, 50*time.Millisecond)
	between(l, "websocket.compression.min_size", w.Compression.MinSize, 64, 1<<20)
	between(l, "websocket.compression.cpu", w.Compression.CPU, time.Millisecond, 16*time.Second)
	between(l, "websocket.history", w.History, 64<<10, 4<<30)
	between(l, "websocket.ping_interval", w.PingInterval, time.Second, time.Hour)
	between(l, "websocket.pong_timeout", w.PongTimeout, time.Second, time.Hour)
	between(l, "websocket.max_connections", w.MaxConnections, 0, 1<<24)
	between(l, "websocket.max_per_hub", w.MaxPerHub, 0, 1<<24)
	between(l, "websocket.max_per_key", w.MaxPerKey, 0, 1<<24)
}
