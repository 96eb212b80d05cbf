;;;; A server of a probe that speaks the protocols of the web, and curl as its client.

(in-package #:clgrpc.tests.web)

(defun refuse (request call)
  (declare (ignore request call))
  (grpc:fail :not-found "no such note" :details (list (lab:make-note :number 7))))

(defmacro with-web-probe ((server &rest options) (&rest handlers) &body body)
  "Evaluate BODY with SERVER a server of a probe with HANDLERS that speaks gRPC-Web and Connect."
  `(with-probe (channel :server ,server
                        :options (list :protocols '(:grpc :grpc-web :connect) ,@options))
       (,@handlers)
     ,@body))

(defparameter *versions* '("--http1.1" "--http2-prior-knowledge")
  "The versions of HTTP that curl is to speak.")

(defparameter *status* '("-w" " %{http_code}")
  "Has curl print the status.")

(defun message-octets (metrics direction)
  "The octets of messages that METRICS have for servers in DIRECTION, sent or rcvd; or nil."
  (let ((family (find (format nil "grpc.server.call.~A_total_compressed_message_size" direction)
                      (metrics:collect metrics) :key #'metrics:family-name :test #'string=)))
    (and family (reduce #'+ (metrics:family-points family) :key #'metrics:point-sum))))

(defun octets-file (octets)
  "The name of a file with OCTETS, as curl takes it."
  (uiop:with-temporary-file (:pathname path :keep t)
    (with-open-file (stream path :direction :output :if-exists :supersede
                                 :element-type '(unsigned-byte 8))
      (write-sequence octets stream))
    (format nil "@~A" path)))

(defmacro with-octets-file ((name octets) &body body)
  "Evaluate BODY with NAME bound to curl's argument for a file with OCTETS."
  `(let ((,name (octets-file ,octets)))
     (unwind-protect (progn ,@body)
       (delete-file (subseq ,name 1)))))

(defun curl-text (server path &rest arguments)
  (string-right-trim "|" (apply #'curl server path arguments)))

(defun post (server path type data &rest arguments)
  "The output of curl for a POST of DATA, a string or a file as curl names it, with TYPE to PATH."
  (apply #'curl-text server path "-H" (format nil "content-type: ~A" type) "--data-binary" data
         arguments))
