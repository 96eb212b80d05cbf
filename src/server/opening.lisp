;;;; What a new connection speaks (wire/dialect.lisp): HTTP/2, or a registered dialect, which then
;;;; gets the connection with its first octets. The connection has its seat and its limits whatever
;;;; it speaks. HTTP/2 loses no time by this: it gets the first octets in the same read.

(in-package #:clgrpc.server)

(defun agreed-protocol (hub)
  "What ALPN has agreed on for HUB's connections, or nil."
  (let ((credentials (server-credentials (hub-server hub))))
    (and credentials
         (loop:tls-credentials-alpn credentials)
         "h2")))                        ; our TLS offers nothing else

(defun open-speech (link octets start end)
  "The OPENING of a server's LINK."
  (let ((dialect (wire:opening-dialect (agreed-protocol (link-owner link)) octets start end)))
    ;; HTTP/2 is ready with its SETTINGS, others when they begin
    (when (wire:connection-dialect-p dialect) (note-ready link))
    dialect))
