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

// copyImage copies the image of the instance to the destination if it is missing there. A rollback does not remove it.
func (mg *migration) copyImage(ctx context.Context, f hostState) error {
	if f.src.inPlace == nil {
		return nil
	}
	c, err := mg.source.inspectContainer(ctx, mg.Instance)
	if err != nil {
		return mg.withServer(mg.source, err)
	}
	id := c.Image
	_, err = mg.destination.client.ImageInspect(ctx, id)
	if errdefs.IsNotFound(err) {
		id, err = mg.sendImage(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("copy image %s to server %s: %w", c.Config.Image, mg.destination.server, err)
	}
	mg.image, err = mg.nameImage(ctx, id, c.Config.Image)
	return mg.withServer(mg.destination, err)
}

// nameImage tags the image with its name on the destination, and returns the name. If the name is not free there, it
// returns the ID.
func (mg *migration) nameImage(ctx context.Context, id, name string) (string, error) {
	if strings.HasPrefix(name, "sha256:") || strings.Contains(name, "@") {
		return id, nil
	}
	there, err := mg.destination.client.ImageInspect(ctx, name)
	switch {
	case errdefs.IsNotFound(err):
		if _, err := mg.destination.client.ImageTag(ctx, client.ImageTagOptions{Source: id, Target: name}); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case there.ID != id:
		return id, nil
	}
	return name, nil
}

// sendImage saves the image on the source, loads it on the destination, and returns its ID there.
func (mg *migration) sendImage(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, err := mg.source.client.ImageInspect(ctx, id)
	if err != nil {
		return "", mg.withServer(mg.source, err)
	}
	saved, err := mg.source.client.ImageSave(ctx, []string{id})
	if err != nil {
		return "", mg.withServer(mg.source, err)
	}
	counted := &progressReader{reader: saved, step: stepImage, total: at.Size, report: mg.report}
	loaded, err := mg.destination.client.ImageLoad(ctx, counted)
	if err == nil {
		id, err = readLoaded(loaded, id)
		err = errors.Join(err, loaded.Close())
	}
	_ = saved.Close() // all data has been read
	if failed := counted.readError(); failed != nil {
		return "", mg.withServer(mg.source, failed)
	}
	if err != nil {
		return "", err
	}
	there, err := mg.destination.client.ImageInspect(ctx, id)
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
		for _, prefix := range []string{"Loaded image ID: ", "Loaded image: "} { // the second precedes a name
			if loaded, ok := strings.CutPrefix(line.Stream, prefix); ok {
				id = strings.TrimSpace(loaded)
			}
		}
	}
}

// progressReader reports the number of bytes read, and stores a read error. The mutex is needed because the HTTP client
// may continue to read after the response.
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
