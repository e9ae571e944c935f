package daemon

import (
	"cmp"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/metrics"
)

// clientOptions returns the options of the stream server.
func (d *Daemon) clientOptions(s *stores, cursorKey streamid.CursorKey, recorder *history.Recorder) clients.Options {
	cfg := d.cfg.Websocket
	node := d.clientLimit(cfg.MaxConnections, openFiles())
	return clients.Options{
		QueueBytes: int(cfg.Queue), HistoryBytes: int(cfg.Recent), PingInterval: cfg.PingInterval,
		PongTimeout: cfg.PongTimeout, CoalesceDelay: cfg.Gather,
		Compression: clients.Compression{
			Enabled: cfg.Compression.Enabled, MinSize: int(cfg.Compression.MinSize), CPU: cfg.Compression.CPU,
		},
		Partitions: s.keys.Partitions(), Partition: s.keys.Partition, History: s.log,
		PositionsBefore: s.log.PositionsBefore,
		OnBroadcast:     recorder.RecordClients,
		CursorKey:       cursorKey,
		Limits: clients.Limits{
			Node: node, Hub: cfg.MaxPerHub, Key: cfg.MaxPerKey, Account: cfg.MaxPerAccount,
		},
		Log: d.log.With("component", "clients"), Observer: clientsObserver{d.metrics},
	}
}

// clientsObserver counts the events of clients.
type clientsObserver struct{ *metrics.Metrics }

// Connected counts a new connection.
func (o clientsObserver) Connected(compressed bool) {
	o.Metrics.Connected()
	if compressed {
		o.CompressionClients(1)
	}
}

// Disconnected counts a closed connection.
func (o clientsObserver) Disconnected(e clients.CloseReason, compressed bool) {
	o.Metrics.Disconnected(string(e))
	if compressed {
		o.CompressionClients(-1)
	}
}

func (o clientsObserver) Rejected(l clients.Limit) { o.Metrics.Rejected(string(l)) }

func (o clientsObserver) Replayed(from clients.ReplaySource, n int) {
	o.Metrics.Replayed(string(from), n)
}

func (o clientsObserver) Resynced(reason clients.ResyncReason, n int) {
	o.Metrics.Resynced(string(reason), n)
}

// clientLimit returns the maximum number of clients of this node (0 is no limit) and logs the source of the limit.
// Without the log record, a low limit of open files would be visible only as rejected clients.
func (d *Daemon) clientLimit(requested, files int) int {
	limit := maxClients(requested, files)
	d.metrics.ClientsLimit(limit)
	limitedBy := "websocket.max_connections"
	if limit != requested {
		limitedBy = "open files (ulimit -n, LimitNOFILE=)"
	}
	log := d.log.With("limit", limit, "limited_by", limitedBy, "open_files", files, "max_connections", requested)
	switch {
	case limit == 0:
		d.log.Info("number of clients is unlimited", "open_files", "unlimited", "max_connections", requested)
	case limit < requested:
		log.Warn("limit of open files is too low for websocket.max_connections")
	default:
		log.Info("number of clients is limited")
	}
	return limit
}

const (
	// minReservedFiles is the number of files reserved for Redis, sinks and requests.
	minReservedFiles = 256
	// maxHealthConns is the maximum number of connections of the health listener.
	maxHealthConns = 32
)

func reservedFiles(files int) int { return min(max(files/10, minReservedFiles), files/2) }

// connLimits returns the limits of the public listener. Its requests may use a quarter of the reserved files. 0 files
// means that the number is not limited.
func connLimits(cfg config.Server, files int) httpserver.ConnLimits {
	total := cfg.MaxConnections
	if files > 0 {
		available := files - reservedFiles(files)*3/4
		total = min(cmp.Or(total, available), available)
	}
	return httpserver.ConnLimits{Total: total, PerIP: cmp.Or(cfg.MaxConnectionsPerIP, total/2)}
}

// maxClients returns the maximum number of clients of a node that may open the given number of files. The result
// is at most requested. 0 means no limit, for files, requested and the result.
func maxClients(requested, files int) int {
	if files == 0 {
		return requested
	}
	available := files - reservedFiles(files)
	if requested == 0 {
		return available
	}
	return min(requested, available)
}
