package docker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

// copyImage gives the destination the image of the instance. It stays there, whatever becomes of the migration.
func (v *migration) copyImage(ctx context.Context, f hostState) error {
	if f.src.inPlace == nil {
		return nil
	}
	c, err := v.source.inspectContainer(ctx, v.Instance)
	if err != nil {
		return v.withServer(v.source, err)
	}
	id := c.Image
	_, err = v.destination.client.ImageInspect(ctx, id)
	if errdefs.IsNotFound(err) {
		id, err = v.sendImage(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("the image %s cannot be had on server %s: %w", c.Config.Image, v.destination.server, err)
	}
	v.image, err = v.nameImage(ctx, id, c.Config.Image)
	return v.withServer(v.destination, err)
}

// nameImage returns the name of the image at the destination: its own name if that is free or already refers to this
// image.
func (v *migration) nameImage(ctx context.Context, id, name string) (string, error) {
	if strings.HasPrefix(name, "sha256:") || strings.Contains(name, "@") {
		return id, nil
	}
	there, err := v.destination.client.ImageInspect(ctx, name)
	switch {
	case errdefs.IsNotFound(err):
		if _, err := v.destination.client.ImageTag(ctx, client.ImageTagOptions{Source: id, Target: name}); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case there.ID != id:
		return id, nil
	}
	return name, nil
}

// sendImage saves the image at the source and loads it at the destination, and returns its id there.
func (v *migration) sendImage(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, err := v.source.client.ImageInspect(ctx, id)
	if err != nil {
		return "", v.withServer(v.source, err)
	}
	saved, err := v.source.client.ImageSave(ctx, []string{id})
	if err != nil {
		return "", v.withServer(v.source, err)
	}
	counted := &progressReader{reader: saved, step: stepImage, total: at.Size, report: v.report}
	loaded, err := v.destination.client.ImageLoad(ctx, counted)
	if err == nil {
		id, err = readLoaded(loaded, id)
		err = errors.Join(err, loaded.Close())
	}
	_ = saved.Close() // what matters has been read
	if failed := counted.readError(); failed != nil {
		return "", v.withServer(v.source, failed)
	}
	if err != nil {
		return "", err
	}
	there, err := v.destination.client.ImageInspect(ctx, id)
	return there.ID, err
}

// readLoaded reads Docker's output of a load, and returns the ID of the image there. Hosts with different image stores
// have different IDs for the same image.
func readLoaded(r io.Reader, id string) (string, error) {
	d := json.NewDecoder(bufio.NewReader(r))
	for {
		var line struct {
			Stream string `json:"stream"`
			Error  string `json:"error"`
		}
		switch err := d.Decode(&line); {
		case errors.Is(err, io.EOF):
			return id, nil
		case err != nil:
			return id, err
		case line.Error != "":
			return id, errors.New(line.Error)
		}
		for _, prefix := range []string{"Loaded image ID: ", "Loaded image: "} { // the latter is followed by a name
			if loaded, ok := strings.CutPrefix(line.Stream, prefix); ok {
				id = strings.TrimSpace(loaded)
			}
		}
	}
}

// progressReader reports the number of bytes read, and remembers a read error. HTTP may continue to read after the
// answer.
type progressReader struct {
	reader       io.Reader
	step         string
	done         int64
	total        int64
	lastReported int64
	report       func(relay.Progress)

	mu  sync.Mutex
	err error
}

func (m *progressReader) readError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *progressReader) Read(p []byte) (int, error) {
	n, err := m.reader.Read(p)
	m.done += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		m.mu.Lock()
		m.err = err
		m.mu.Unlock()
	}
	if m.done-m.lastReported >= 1<<20 || err != nil {
		m.lastReported = m.done
		m.report(relay.Progress{Step: m.step, Bytes: m.done, Total: max(m.total, m.done)})
	}
	return n, err
}
