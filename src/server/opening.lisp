;;;; What a new connection speaks: HTTP/2, or HTTP/1.1 where the server does. It is decided here, by
;;;; what ALPN has agreed on or by the first octets, which the connection then goes on with. It has
;;;; its seat and its limits whatever it speaks. HTTP/2 loses no time by this: it gets the first
;;;; octets in the same read. It answers connections that speak neither.

(in-package #:clgrpc.server)

(defun agreed-protocol (link)
  "What ALPN has agreed on for LINK, or nil."
  (let ((security (wire:link-security link)))
    (and security (loop:security-alpn security))))

(defun begin-speech (link dialect)
  "LINK speaks DIALECT. Return that."
  ;; HTTP/2 is ready with its SETTINGS, others when they begin
  (note-ready link)
  dialect)

(defun open-speech (link octets start end)
  "The OPENING of a server's LINK."
  (let ((protocol (agreed-protocol link)))
    (cond ((not (speaks-http1-p (link-owner link))) nil)
          (protocol (and (string= "http/1.1" protocol) (begin-speech link **http1**)))
          (t (case (opens-http1-p octets start end)
               ((nil) nil)
               (:more :more)
               (t (begin-speech link **http1**)))))))
