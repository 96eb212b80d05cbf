;;;; Token endpoints for tests: one whose answers a test determines, and sockets that misbehave.

(in-package #:clgrpc.tests.token)

(defparameter *request*
  (credentials::make-credentials-request "/shop.Shop/Buy" "shop.example:443" t)
  "The request of credentials.")

(defun ask-token (credentials &key (request *request*) (timeout 10))
  "The token that CREDENTIALS send for REQUEST, without \"Bearer \", or their RPC-ERROR."
  (handler-case
      (let* ((answer (grpc:get-request-metadata credentials request))
             (metadata (if (typep answer 'grpc:future)
                           (grpc:await answer :timeout timeout)
                           answer))
             (value (cdr (assoc "authorization" metadata :test #'string=))))
        (assert (eql 0 (search "Bearer " value)))
        (subseq value 7))
    (grpc:rpc-error (error) error)))

(defun status-of-token (credentials)
  "The status with which CREDENTIALS fail, and its text; or :ok."
  (let ((token (ask-token credentials)))
    (if (stringp token)
        :ok
        (values (grpc:rpc-error-status token) (grpc:rpc-error-message token)))))

(defun end-back-off (credentials)
  (setf (token::token-retry-ns credentials) 0))

(defun age-token (credentials &key (refresh -1) (end 60))
  "Let CREDENTIALS fetch another token in REFRESH seconds, and let the kept one expire in END."
  (let ((now (token::wall-now)))
    (setf (token::token-kept credentials)
          (token::make-kept-token (token::kept-token-text (token::token-kept credentials))
                                  (+ now (* refresh 1000000000)) (+ now (* end 1000000000))))))

(defun form-alist (body)
  "The parameters of BODY, octets."
  (flet ((decoded (text)
           (octets-string (percent-octets (coerce text 'simple-string) 0 (length text) :plus t))))
    (loop for pair in (uiop:split-string (map 'string #'code-char body) :separator "&")
          for equals = (position #\= pair)
          collect (cons (decoded (subseq pair 0 equals)) (decoded (subseq pair (1+ equals)))))))

(defun parameter (name form)
  (cdr (assoc name form :test #'string=)))

(defun json (&rest names-and-values)
  (octets-string (string-octets (write-json (loop for (name value) on names-and-values by #'cddr
                                                  collect (cons name value))))))

(defun token-answer (token &optional (seconds 3600))
  (values 200 '(("content-type" . "application/json"))
          (json "access_token" token "token_type" "Bearer" "expires_in" seconds)))

(defun call-with-endpoint (answer function server-options)
  "Call FUNCTION with the URL of a token endpoint whose requests ANSWER, a function of the form's
alist and the request, answers as a handler of HTTP."
  (with-started (server (apply #'grpc:start-server '()
                               :http (list (grpc:http-handler
                                            "/oauth/token"
                                            (lambda (request)
                                              (funcall answer
                                                       (form-alist (grpc:http-request-body request))
                                                       request))
                                            :methods '("POST")))
                               server-options) :drain 5)
    (funcall function (format nil "http~:[~;s~]://~A/oauth/token"
                              (getf server-options :credentials)
                              (grpc:server-address server)))))

(defmacro with-endpoint ((url answer &rest server-options) &body body)
  `(with-log ()
     (call-with-endpoint ,answer (lambda (,url) ,@body) (list ,@server-options))))

(defun client-of (url &rest arguments)
  (apply #'grpc:client-token url :client-id "me" :client-secret "s3cret" arguments))

;;; Sockets that misbehave

(defun call-with-socket (manner function)
  "Call FUNCTION with the URL of a listener whose connections MANNER, a function of a stream of
octets, serves, one after the other, on a thread of its own."
  (support:with-served-sockets (address socket)
      (ignore-errors
       (funcall manner (sb-bsd-sockets:socket-make-stream socket :input t :output t
                                                                 :element-type 'octet
                                                                 :buffering :none :timeout 10)))
    (funcall function (format nil "http://~A/token" address))))

(defmacro with-socket ((url manner) &body body)
  `(with-log () (call-with-socket ,manner (lambda (,url) ,@body))))

(defun read-request (stream)
  "Read from STREAM until a request is whole, or its sender has closed the stream."
  (let ((text (make-array 0 :element-type 'character :adjustable t :fill-pointer t)) (end nil))
    (loop for octet = (read-byte stream nil)
          while octet
          do (vector-push-extend (code-char octet) text)
             (unless end
               (let ((mark (search (format nil "~C~C~C~C" #\Return #\Newline #\Return #\Newline)
                                   text)))
                 (when mark
                   (let ((length (search "content-length: " text)))
                     (setf end (+ mark 4 (if length
                                             (parse-integer text :start (+ length 16)
                                                                 :junk-allowed t)
                                             0)))))))
             (when (and end (= end (length text))) (return)))
    (coerce text 'string)))

(defun say (stream control &rest arguments)
  "Send the text that CONTROL formats, with each | as CR LF."
  (loop for character across (apply #'format nil control arguments)
        do (if (char= #\| character)
               (progn (write-byte 13 stream) (write-byte 10 stream))
               (write-byte (char-code character) stream)))
  (finish-output stream))
