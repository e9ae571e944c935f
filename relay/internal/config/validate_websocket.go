package config

import "time"

func (l *loader) checkWebsocket(w *Websocket) {
	checkRange(l, "websocket.queue", w.Queue, 64<<10, 1<<30)
	checkRange(l, "websocket.gather", w.Gather, 0, 50*time.Millisecond)
	checkRange(l, "websocket.compression.min_size", w.Compression.MinSize, 64, 1<<20)
	checkRange(l, "websocket.compression.cpu", w.Compression.CPU, time.Millisecond, 16*time.Second)
	checkRange(l, "websocket.history", w.History, 64<<10, 4<<30)
	checkRange(l, "websocket.ping_interval", w.PingInterval, time.Second, time.Hour)
	checkRange(l, "websocket.pong_timeout", w.PongTimeout, time.Second, time.Hour)
	checkRange(l, "websocket.max_connections", w.MaxConnections, 0, 1<<24)
	checkRange(l, "websocket.max_per_hub", w.MaxPerHub, 0, 1<<24)
	checkRange(l, "websocket.max_per_key", w.MaxPerKey, 0, 1<<24)
}
