package main

import (
	"runtime/debug"
)

// version is set by the linker in releases (-X main.version=v1.2.3).
var version string

// buildVersion names this build: the release, else what Go recorded of the source.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return info.Main.Version
}

// moduleVersion is the version in which others can download this program's module. One that was built in a checkout,
// without being a release, has none.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return "devel"
			}
		}
	}
	return buildVersion()
}
