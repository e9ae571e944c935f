package daemon

import (
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// hubOptions are the configuration's settings of the stream's clients, and the log that they resume from.
func (a *App) hubOptions(s *stores) hub.Options {
	cfg := a.cfg.Websocket
	node := a.clientLimit(cfg.MaxConnections, openFiles())
	return hub.Options{
		QueueBytes: int(cfg.Queue), HistoryBytes: int(cfg.History), PingInterval: cfg.PingInterval, PongTimeout: cfg.PongTimeout,
		Compression: hub.Compression{Enabled: cfg.Compression.Enabled, MinSize: int(cfg.Compression.MinSize), CPU: cfg.Compression.CPU},
		Partitions:  s.keys.Partitions(), Partition: s.keys.Partition, History: s.log,
		Limits: hub.Limits{Node: node, Hub: cfg.MaxPerHub, Key: cfg.MaxPerKey},
		Log:    a.log.With("room", "hub"), Observer: hubObserver{a.metrics},
	}
}

// adminConnections is nil while the daemon is starting.
func (a *App) adminConnections() adminserver.Connections {
	if clients := a.clients.Load(); clients != nil {
		return clients
	}
	return nil
}

// clientLimit returns how many clients this node takes (0 is no limit), and says what limits them: who runs out of files finds
// clients that are refused, and nothing else.
func (a *App) clientLimit(wanted, files int) int {
	most := maxClients(wanted, files)
	a.metrics.ClientsLimit(most)
	by := "websocket.max_connections"
	if most != wanted {
		by = "open files (ulimit -n, LimitNOFILE=)"
	}
	log := a.log.With("clients", most, "limited_by", by, "open_files", files, "max_connections", wanted)
	switch {
	case most == 0:
		a.log.Info("clients of the stream are not limited", "open_files", "unlimited", "max_connections", wanted)
	case most < wanted:
		log.Warn("fewer clients can be served than websocket.max_connections says: raise the limit of open files")
	default:
		log.Info("clients of the stream are limited")
	}
	return most
}

// minReservedFiles is how many files are kept for what is no client: Redis, sinks, requests that are being answered.
const minReservedFiles = 256

// maxClients returns how many clients a node takes that may open so many files (0 is no limit), asked for wanted (0 for
// as many as can be).
func maxClients(wanted, files int) int {
	if files == 0 {
		return wanted
	}
	can := files - min(max(files/10, minReservedFiles), files/2)
	if wanted == 0 {
		return can
	}
	return min(wanted, can)
}
