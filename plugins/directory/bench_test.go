package directory

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkCopy alternates with `cp -r`, and reports its throughput relative to cp: for the copy with checksums, and
// for the copy with verification.
func BenchmarkCopy(b *testing.B) {
	for _, c := range []struct {
		name        string
		files, size int
	}{
		{"large", 4, 128 << 20},
		{"medium", 2000, 128 << 10},
		{"small", 20_000, 2 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			fill(b, filepath.Join(r.a, "i/volumes/data"), c.files, c.size)
			if err := exec.Command("sync").Run(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(c.files * c.size))
			var ours, verified, cp time.Duration
			for b.Loop() {
				b.StopTimer()
				target := filepath.Join(r.b, "cp")
				began := time.Now()
				if out, err := exec.Command("cp", "-r", filepath.Join(r.a, "i"), target).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				cp += time.Since(began)
				if err := os.RemoveAll(target); err != nil {
					b.Fatal(err)
				}
				v, err := r.d.newMove(r.m, r.report)
				if err != nil {
					b.Fatal(err)
				}
				if err := v.destination.claim(); err != nil {
					b.Fatal(err)
				}
				tree, err := newTree(v)
				if err != nil {
					b.Fatal(err)
				}
				tree.source = v.source.instancePath()
				b.StartTimer()
				began = time.Now()
				if err := tree.copy(b.Context()); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(began)
				b.StopTimer()
				began = time.Now()
				if err := tree.compareAll(b.Context()); err != nil {
					b.Fatal(err)
				}
				verified += time.Since(began)
				if err := os.RemoveAll(filepath.Dir(tree.root)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(cp.Seconds()/ours.Seconds(), "of-cp")
			b.ReportMetric(cp.Seconds()/(ours+verified).Seconds(), "of-cp-verified")
		})
	}
}

// fill writes files of random bytes, one hundred per directory.
func fill(tb testing.TB, dir string, files, size int) {
	tb.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	for i := range files {
		path := filepath.Join(dir, fmt.Sprint(i/100), fmt.Sprint(i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}
