package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// compressionMetrics are the cost and the savings of compressed messages.
type compressionMetrics struct {
	clients             prometheus.Gauge
	frames, savedBytes  prometheus.Counter
	compressed, skipped prometheus.Counter
	seconds             prometheus.Counter
}

func newCompressionMetrics(r *prometheus.Registry) compressionMetrics {
	c := compressionMetrics{
		clients: gauge("stream_compression_clients",
			"Connected clients that accept compressed messages (websocket.compression)."),
		frames: counter("stream_compressed_frames_total",
			"Compressed frames sent to clients; hubrelay_stream_frames_total counts all frames."),
		savedBytes: counter("stream_compression_saved_bytes_total",
			"Bytes saved by compression; hubrelay_stream_bytes_total counts the compressed bytes."),
		compressed: counter("stream_compressions_total",
			"Compressed events, counted once for all clients with the same format."),
		seconds: counter("stream_compression_seconds_total",
			"CPU time of compression, limited by websocket.compression.cpu."),
		skipped: counter("stream_compressions_skipped_total",
			"Events sent uncompressed because the CPU limit was reached or all compressors were busy."),
	}
	r.MustRegister(c.clients, c.frames, c.savedBytes, c.compressed, c.seconds, c.skipped)
	return c
}

// CompressionClients adds to the number of connected clients that accept compressed messages.
func (m *Metrics) CompressionClients(clients int) { m.compression.clients.Add(float64(clients)) }

// Compressed counts compressed frames and the bytes that they saved.
func (m *Metrics) Compressed(frames, saved int) {
	m.compression.frames.Add(float64(frames))
	m.compression.savedBytes.Add(float64(saved))
}

// CompressionTime counts one compressed notification and the time for it.
func (m *Metrics) CompressionTime(duration time.Duration) {
	m.compression.compressed.Inc()
	m.compression.seconds.Add(duration.Seconds())
}

// CompressionSkipped counts a notification that was not compressed because the CPU limit was reached.
func (m *Metrics) CompressionSkipped() { m.compression.skipped.Inc() }
