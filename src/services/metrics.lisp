;;;; GET /metrics over plain HTTP, for Prometheus and others who scrape: the text of a metrics
;;;; object, in the format and the compression that the request asks for.

(in-package #:clgrpc.services)

(defun gzip (octets)
  "OCTETS compressed with gzip, or nil if that cannot be: there is no libz, or no memory."
  (declare (type octets octets))
  (when (os:open-zlib)
    (multiple-value-bind (compressed end) (os:deflate-octets :gzip 1 octets 0 (length octets) 0)
      (when compressed
        (prog1 (subseq-octets compressed 0 end) (give-octets-back compressed))))))

(defun tell-metrics (metrics request)
  "Answer REQUEST, an HTTP-REQUEST, with what METRICS have counted."
  (flet ((header (name) (server:http-request-header request name)))
    (multiple-value-bind (text type) (metrics:metrics-text metrics :accept (header "accept"))
      (let ((compressed (and (metrics:gzip-wanted-p (header "accept-encoding")) (gzip text)))
            (headers `(("content-type" . ,type) ("cache-control" . "no-store")
                       ("vary" . "accept, accept-encoding"))))
        (values 200
                (if compressed (acons "content-encoding" "gzip" headers) headers)
                (or compressed text))))))

(defun metrics-handler (metrics &key (path "/metrics"))
  "Return a handler for START-SERVER's :http that tells over HTTP/1.1 and HTTP/2, at PATH, a string,
what METRICS, of MAKE-METRICS, have counted: in OpenMetrics, with exemplars, or in Prometheus's own
format, as the request's accept header asks, and in gzip if accept-encoding does. The handler may be
given to any server, also to several; it need not be one that METRICS observe. From any thread."
  (check-type metrics metrics:metrics)
  (server:http-handler path (lambda (request) (tell-metrics metrics request))))
