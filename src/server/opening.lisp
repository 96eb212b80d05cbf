;;;; What a new connection speaks (wire/dialect.lisp): HTTP/2, or a registered dialect, which then
;;;; gets the connection with its first octets. The connection has its seat and its limits whatever
;;;; it speaks. HTTP/2 loses no time by this: it gets the first octets in the same read.

(in-package #:clgrpc.server)

(defun agreed-protocol (link)
  "What ALPN has agreed on for LINK, or nil."
  (let ((security (wire:link-security link)))
    (and security (loop:security-alpn security))))

(defun known-dialects (hub)
  "What connections of HUB may speak besides HTTP/2."
  (if (speaks-http1-p hub)
      (cons **http1** wire:**connection-dialects**)
      wire:**connection-dialects**))

(defun open-speech (link octets start end)
  "The OPENING of a server's LINK."
  (let ((dialect (wire:opening-dialect (agreed-protocol link) octets start end
                                       :dialects (known-dialects (link-owner link)))))
    ;; HTTP/2 is ready with its SETTINGS, others when they begin
    (when (wire:connection-dialect-p dialect) (note-ready link))
    dialect))
