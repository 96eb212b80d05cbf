;;;; Common code of this suite: connections with a given sink and their own output, and messages
;;;; sent as the layer above sends them.

(in-package #:clgrpc.tests.http2)

(def-suite :clgrpc.http2 :description "RFC 9113: the connection as a state machine.")

(defstruct (end (:constructor make-end (connection buffer)))
  "A connection and the buffer of its output."
  connection
  buffer)

(defun connect-end (role &rest sink)
  "An END in ROLE with the functions SINK, started at time 0. :OPTIONS in SINK are its options."
  (let* ((buffer (make-buffer))
         (options (apply #'make-options (getf sink :options)))
         (functions (loop for (name value) on sink by #'cddr
                          unless (eq name :options) append (list name value)))
         (connection (h2:make-connection
                      role
                      (apply #'h2:make-sink
                             :on-output (lambda (connection) (declare (ignore connection)) buffer)
                             functions)
                      options)))
    (h2:start-connection connection 0)
    (make-end connection buffer)))

(defun take-output (end)
  (h2:write-queued (end-connection end) 65536)
  (let ((buffer (end-buffer end)))
    (h2:give-output-back (end-connection end))
    (prog1 (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))
      (clear-buffer buffer))))

(defun give (end octets)
  "Give OCTETS to END; return how many it has consumed."
  (h2:receive-octets (end-connection end) octets 0 (length octets) 0))

(defun pump (a b)
  "Carry octets between the ends A and B until both are silent."
  (loop for from-a = (take-output a)
        for from-b = (take-output b)
        until (and (zerop (length from-a)) (zerop (length from-b)))
        do (assert (= (length from-a) (give b from-a)))
           (assert (= (length from-b) (give a from-b)))))

(defparameter *request-fields*
  (map 'vector (lambda (pair) (hpack:string-field (first pair) (second pair))) (field-set :post)))
(defparameter *response-fields*
  (map 'vector (lambda (pair) (hpack:string-field (first pair) (second pair))) (field-set :ok)))
(defparameter *trailer-fields*
  (map 'vector (lambda (pair) (hpack:string-field (first pair) (second pair))) (field-set :done)))

(defun send-headers (stream fields end-p)
  (declare (type simple-vector fields))
  (multiple-value-bind (encoder buffer) (h2:begin-headers stream)
    (loop for field across fields
          do (hpack:encode-field encoder buffer field :index)))
  (h2:end-headers stream end-p))

(defun send-octets (stream octets end-p)
  "Send OCTETS on STREAM by the fast path if that is open."
  (declare (type octets octets))
  (let ((count (length octets)))
    (cond ((h2:reserve-data stream count)
           (multiple-value-bind (to position) (h2:begin-data stream count)
             (copy-octets octets 0 count to position))
           (h2:end-data stream count end-p))
          (t
           (h2:send-data stream octets 0 count end-p)))))
