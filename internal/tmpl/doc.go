// Package tmpl renders the templates of operators: webhook bodies, Slack texts and blocks, and email.
// docs/templates.md is the manual.
//
// The language is text/template, or html/template for HTML, with the functions of Alertmanager. Every rendering ends:
// the number of steps, the depth of calls, the bytes that functions read and write, and the output are limited. The
// limits are the same on every machine, so a template that exceeds one fails everywhere. Time is limited only as a last
// resort, and a rendering that exceeds it may be retried.
//
// Code for one kind of sink does not belong here.
package tmpl
