;;;; The protocol of a server's connection, HTTP/2 or HTTP/1.1. Only this file determines the
;;;; protocol: by the result of ALPN or, without ALPN, by the first octets.

(in-package #:clgrpc.exchange)

(defun first-octets-version (octets start end)
  "Return the protocol of a connection whose first octets are those from START to END. It is HTTP/2
if they are \"PRI \", and HTTP/1.1 if they are other text. All other octets are left to HTTP/2,
which reports the error. Return :MORE if more octets are needed."
  (let ((count (min 4 (- end start))))
    (cond ((null (mismatch #.(ascii-octets "PRI ") octets :end1 count :start2 start
                                                          :end2 (+ start count)))
           (if (< count 4) :more :http2))
          ((or (<= 32 (aref octets start) 126) (member (aref octets start) '(9 10 13))) :http1)
          (t :http2))))

(defun http-version-of (agreed octets start end)
  "Return the protocol of a connection, :HTTP1 or :HTTP2. AGREED is the protocol by ALPN, a string
or nil, and the first octets are those from START to END. Return :MORE if more octets are needed."
  (cond ((null agreed) (first-octets-version octets start end))
        ((string= "http/1.1" agreed) :http1)
        (t :http2)))
