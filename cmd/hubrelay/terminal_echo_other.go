//go:build !linux

package main

import "golang.org/x/sys/unix"

const readTermios, writeTermios = unix.TIOCGETA, unix.TIOCSETA
