// Package testkit contains helpers that the tests of several packages share.
//
// Only tests and other test packages import it. It imports no package of hubrelay, so every test can use it.
package testkit
