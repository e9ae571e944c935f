// Package forward authenticates with credentials that an HTTP endpoint of the operator verifies. A [Verifier] remembers
// the decisions for a while, also while the endpoint does not answer.
package forward
