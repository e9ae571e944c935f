package daemon

import (
	"context"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

// status implements [adminserver.Status].
type status struct {
	daemon    *Daemon
	stores    *stores
	clients   *hub.Hub
	node      string
	startedAt time.Time
}

// Show implements [adminserver.Status].
func (s *status) Show(ctx context.Context) (adminapi.Status, error) {
	info, err := s.stores.log.Info(ctx)
	if err != nil {
		return adminapi.Status{}, err
	}
	nodes, err := s.stores.leases.ListNodes(ctx)
	if err != nil {
		return adminapi.Status{}, err
	}
	_, queued := s.clients.QueueStats()
	list := adminapi.Status{
		Node: s.node, Version: s.daemon.options.Version, StartedAt: s.startedAt, Nodes: nodes,
		ConfigWarning: s.daemon.reloadStatus.operatorWarning(),
		Storage: adminapi.StorageStatus{
			UsedBytes: s.stores.monitor.UsedMemory(), MaxBytes: s.stores.monitor.MaxMemory(),
		},
		Log:     adminapi.LogStatus{Stored: info.Stored, Events: info.Length, OldestAt: info.OldestAt},
		Streams: adminapi.StreamStatus{Clients: s.clients.Clients(), QueuedBytes: queued},
	}
	if err := s.stores.checkReady(ctx); err != nil {
		list.NotReady = err.Error()
	}
	return list, nil
}
