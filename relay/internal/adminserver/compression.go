package adminserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// compressionMetrics count what compressed messages cost and save.
type compressionMetrics struct {
	clients             prometheus.Gauge
	frames, savedBytes  prometheus.Counter
	compressed, skipped prometheus.Counter
	seconds             prometheus.Counter
}

func newCompressionMetrics(r *prometheus.Registry) compressionMetrics {
	c := compressionMetrics{
		clients:    gauge("stream_compression_clients", "Clients of the stream that are connected and have asked for compressed messages (websocket.compression)."),
		frames:     counter("stream_compressed_frames_total", "Notifications given to clients of the stream in compressed form; stream_frames_total counts all."),
		savedBytes: counter("stream_compression_saved_bytes_total", "Bytes by which these frames are shorter; stream_bytes_total counts what is left."),
		compressed: counter("stream_compressions_total", "Notifications that were compressed, once for all clients that get one in the same form."),
		seconds:    counter("stream_compression_seconds_total", "Time that went into it; websocket.compression.cpu bounds it for each second."),
		skipped:    counter("stream_compressions_skipped_total", "Notifications that were sent as they are since that time was used up, or every compressor busy."),
	}
	r.MustRegister(c.clients, c.frames, c.savedBytes, c.compressed, c.seconds, c.skipped)
	return c
}

// CompressionClients counts clients in or out that asked for compressed messages.
func (m *Metrics) CompressionClients(clients int) { m.compression.clients.Add(float64(clients)) }

// Compressed counts frames given to clients that were compressed, and by how many bytes they are shorter.
func (m *Metrics) Compressed(frames, saved int) {
	m.compression.frames.Add(float64(frames))
	m.compression.savedBytes.Add(float64(saved))
}

// CompressionTime counts one notification that was compressed, and how long that took.
func (m *Metrics) CompressionTime(took time.Duration) {
	m.compression.compressed.Inc()
	m.compression.seconds.Add(took.Seconds())
}

// CompressionSkipped counts one that was not since there was no time for it.
func (m *Metrics) CompressionSkipped() { m.compression.skipped.Inc() }
