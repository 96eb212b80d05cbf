;;;; GET /metrics over plain HTTP, for Prometheus and other scrapers: the text of a metrics object,
;;;; in the format and with the compression for which the request asks.

(in-package #:clgrpc.services)

(defun gzip (octets)
  "Return OCTETS compressed with gzip, or nil if libz or memory is missing."
  (declare (type octets octets))
  (when (os:open-zlib)
    (multiple-value-bind (compressed end) (os:deflate-octets :gzip 1 octets 0 (length octets) 0)
      (when compressed
        (prog1 (subseq-octets compressed 0 end) (give-octets-back compressed))))))

(defun make-metrics-answer (metrics accept gzip)
  "Return three values, the answer with the present figures of METRICS: an HTTP status, headers and
octets. The header ACCEPT determines the format; the octets are compressed if GZIP is true."
  (multiple-value-bind (text type) (metrics:metrics-text metrics :accept accept)
    (let ((compressed (and gzip (gzip text)))
          (headers `(("content-type" . ,type) ("cache-control" . "no-store")
                     ("vary" . "accept, accept-encoding"))))
      (list 200
            (if compressed (acons "content-encoding" "gzip" headers) headers)
            (or compressed text)))))

;;; An answer takes milliseconds to make, and a request for it only a few octets. So a handler makes
;;; a limited number of answers; a client that asks more often gets the last answer again.

(defconstant +answers-at-once+ 50
  "The number of answers that can be made at once, without a pause.")
(defconstant +answers-a-second+ 5
  "The number of answers that are made each second after the first +ANSWERS-AT-ONCE+.")

(defstruct (scrapes (:copier nil))
  "The answers of a handler of metrics."
  (lock (sb-thread:make-mutex :name "clgrpc scrapes") :read-only t) ; guards the other slots
  (left +answers-at-once+ :type real)   ; the number of answers that may be made
  (since-ns 0 :type (unsigned-byte 62)) ; the time for which LEFT is valid
  ;; the last answer of each kind: in Prometheus's format, in OpenMetrics, and in both with gzip
  (answers (make-array 4 :initial-element nil) :type simple-vector :read-only t))

(define-printer (scrapes scrapes)
  "~D left" (floor (scrapes-left scrapes)))

(defun answer-anew-p (scrapes now-ns)
  "True if a new answer may be made at NOW-NS; the answer is then counted."
  (sb-thread:with-mutex ((scrapes-lock scrapes))
    (let ((left (min +answers-at-once+
                     (+ (scrapes-left scrapes)
                        (* +answers-a-second+
                           (ns-seconds (max 0 (- now-ns (scrapes-since-ns scrapes)))))))))
      (setf (scrapes-since-ns scrapes) now-ns
            (scrapes-left scrapes) (if (<= 1 left) (1- left) left))
      (<= 1 left))))

(defun tell-metrics (metrics scrapes request)
  "Answer REQUEST, an HTTP-REQUEST, with the figures of METRICS."
  (flet ((header (name) (exchange:http-request-header request name)))
    (let* ((accept (header "accept"))
           (gzip (metrics:gzip-wanted-p (header "accept-encoding")))
           (place (+ (if (metrics:open-metrics-wanted-p accept) 1 0) (if gzip 2 0)))
           (answers (scrapes-answers scrapes)))
      (values-list (if (or (answer-anew-p scrapes (loop:world-now)) (null (aref answers place)))
                       (setf (aref answers place) (make-metrics-answer metrics accept gzip))
                       (aref answers place))))))

(define-keyword-function metrics-handler (metrics &key (path "/metrics") (quiet t))
  "Return a handler for START-SERVER's :http that answers over HTTP/1.1 and HTTP/2, at PATH, a
string, with the figures of METRICS, an object that MAKE-METRICS returned. The request's header
accept decides between OpenMetrics, with exemplars, and Prometheus's own format; accept-encoding
decides whether gzip is used. The handler may be given to any number of servers, even to a server
that METRICS do not observe. Requests beyond fifty at once, and five a second after that, get the
last answer again. Requests are in traces and, if they end well, in access logs only if QUIET is
false. From any thread."
  (check-type metrics metrics:metrics)
  (let ((scrapes (make-scrapes)))
    (exchange:http-handler path (lambda (request) (tell-metrics metrics scrapes request))
                         :quiet quiet)))
