;;;; Our client with good and bad answers of a server, frame by frame.

(in-package #:clgrpc.tests.client)

(defun call-with-answer (script options function)
  (with-raw-server (address) (fn (_peer exchange) (funcall script exchange))
    (client::call-with-channel address options function)))

(defmacro with-answer ((channel &key options) script &body body)
  "Evaluate BODY with CHANNEL, made with OPTIONS, to a raw server that answers each request, once it
is whole, by SCRIPT, a function of the exchange."
  `(call-with-answer ,script ,options (lambda (,channel) ,@body)))

(defun answer-fields (exchange fields &key (end nil))
  (send-fields (exchange-stream exchange) fields end))

(defun answer-octets (exchange &rest pieces)
  (dolist (octets pieces)
    (http2:send-data (exchange-stream exchange) octets 0 (length octets) nil)))

(defparameter *headers* '((":status" . "200") ("content-type" . "application/grpc")))

(defun error-from (script &rest options)
  "The RPC-ERROR of a unary call that SCRIPT answers; the connection must remain usable for another
call."
  (let ((first t))
    (with-answer (channel :options options)
        (lambda (exchange)
          (if (shiftf first nil)
              (funcall script exchange)
              (ok-response exchange (note-octets 7))))
      (let ((error (caught (ask channel (note 1) :timeout 5))))
        (is (= 7 (number-of (ask channel (note 1)))))
        error))))

(defun status-from (script &rest options)
  (let ((error (apply #'error-from script options)))
    (and error (grpc:rpc-error-status error))))

(test not-a-grpc-response
  "HTTP statuses are mapped to gRPC's; a content type other than application/grpc is not gRPC."
  (flet ((status (http-status &rest fields)
           (status-from (lambda (exchange)
                          (answer-fields exchange `((":status" . ,http-status) ,@fields) :end t)))))
    (loop for (code expected) in '(("400" :internal) ("401" :unauthenticated)
                                   ("403" :permission-denied) ("404" :unimplemented)
                                   ("429" :unavailable) ("431" :unknown)
                                   ("502" :unavailable) ("503" :unavailable)
                                   ("504" :unavailable) ("500" :unknown) ("302" :unknown))
          do (is (eq expected (status code))))
    (is (eq :unknown (status "200")))
    (is (eq :unknown (status "200" '("content-type" . "text/html")))))
  (let ((error (error-from (lambda (exchange)
                             (answer-fields exchange '((":status" . "200")
                                                       ("content-type" . "text/html")))
                             (http2:send-data (exchange-stream exchange) (octets-of 1 2 3)
                                              0 3 t)))))
    (is (eq :unknown (grpc:rpc-error-status error)))
    (is (search "text/html" (grpc:rpc-error-message error)))))

(test statuses-in-trailers
  "Valid values of grpc-status, and the status for all other values."
  (flet ((end (&rest fields)
           (lambda (exchange)
             (answer-fields exchange *headers*)
             (answer-fields exchange fields :end t))))
    (is (eq :not-found (status-from (end '("grpc-status" . "5")))))
    (is (eq :unknown (status-from (end '("grpc-status" . "17")))))
    (is (eq :unknown (status-from (end '("grpc-status" . "x")))))
    (is (eq :unknown (status-from (end '("grpc-status" . "")))))
    (is (eq :unknown (status-from (end '("x-other" . "1")))))
    (let ((error (error-from (end '("grpc-status" . "10") '("grpc-message" . "a%20%E2%82%AC%zz")
                                  '("grpc-status-details-bin" . "AQI=") '("x-tail" . "1")))))
      (is (string= "a €%zz" (grpc:rpc-error-message error)))
      (is (equalp (octets-of 1 2) (grpc:rpc-error-details-octets error)))
      (is (equal '(("x-tail" . "1")) (grpc:rpc-error-trailers error)))
      (is (eq :peer (grpc:rpc-error-ended-by error))))
    ;; as other servers send them
    (let ((error (error-from (end '("grpc-status" . "5") '("grpc-message" . " gone ")
                                  '("x-tail" . " 1 ")))))
      (is (typep error 'grpc:not-found))
      (is (string= " gone " (grpc:rpc-error-message error)))
      (is (equal '(("x-tail" . "1")) (grpc:rpc-error-trailers error))))
    (let ((error (error-from (end '("grpc-status" . "10")
                                  '("grpc-status-details-bin" . "!!!")))))
      (is (typep error 'grpc:aborted))
      (is (null (grpc:rpc-error-details-octets error))))))

(test ends-without-trailers
  (is (eq :internal (status-from (lambda (exchange)
                                   (answer-fields exchange *headers*)
                                   (let ((octets (note-octets 1)))
                                     (http2:send-data (exchange-stream exchange) octets 0
                                                      (length octets) t))))))
  (is (member (status-from (lambda (exchange) (answer-fields exchange *headers* :end t)))
              '(:unknown :internal))))

(test response-messages
  "A wrong number of messages, a wrong prefix or a malformed message ends its own call only."
  (flet ((status (&rest pieces)
           (status-from (lambda (exchange) (apply #'ok-response exchange pieces))
                        :max-receive-octets 1000)))
    (is (eq :unimplemented (status)))
    (is (eq :unimplemented (status (note-octets 1) (note-octets 2))))
    (is (eq :internal (status (framed (octets-of 1) :flag 1))))
    (is (eq :internal (status (framed (octets-of 1) :flag 9))))
    (is (eq :internal (status (framed (octets-of 8)))))
    (is (eq :internal (status (octets-of 0 0))))
    (is (eq :internal (status (note-octets 1) (octets-of 0 0 0))))
    (is (eq :internal (status (framed (octets-of 8 1) :length 3))))
    (is (eq :resource-exhausted (status (framed (make-octets 1001)))))
    (is (eq :resource-exhausted (status (octets-of 0 255 255 255 255))))
    (is (null (status (framed (octets-of)))))))

(test repeated-trailers
  "Trailers that repeat those of a good call do not end a call whose messages were wrong with :ok."
  (let ((count 0))
    (with-answer (channel) (lambda (exchange)
                             (case (incf count)
                               (4 (ok-response exchange))
                               (5 (ok-response exchange (note-octets 1) (octets-of 0)))
                               (t (ok-response exchange (note-octets count)))))
      (flet ((answer () (handler-case (number-of (ask channel (note 0)))
                          (grpc:rpc-error (error) (grpc:rpc-error-status error)))))
        (is (equal '(1 2 3 :unimplemented :internal 6) (loop repeat 6 collect (answer)))))
      (let ((call (collect channel :open)))
        (grpc:close-send call)
        (is (= 7 (number-of (grpc:receive call))))
        (is (null (grpc:receive call)))))))

(test error-beats-what-came-before-it
  "A status other than :ok counts, whatever messages came before, whole or not."
  (flet ((failing (&rest pieces)
           (lambda (exchange)
             (answer-fields exchange *headers*)
             (apply #'answer-octets exchange pieces)
             (answer-fields exchange '(("grpc-status" . "9")) :end t))))
    (is (eq :failed-precondition (status-from (failing (note-octets 1)))))
    (is (eq :failed-precondition (status-from (failing (octets-of 0 0 0)))))
    (with-answer (channel) (failing (note-octets 1))
      (let ((call (collect channel :open)))
        (grpc:send call (note 1))
        (grpc:close-send call)
        (is (typep (caught (grpc:receive call)) 'grpc:failed-precondition)))
      (let ((call (watch channel (note 1))))
        (is (= 1 (number-of (grpc:receive call))))
        (is (typep (caught (grpc:receive call)) 'grpc:failed-precondition))))))

(test resets
  "The statuses for the codes of RST_STREAM, and whether the call may be repeated (for repeated
calls see attempts/attempt.lisp)."
  (loop for (code status sent) in `((,http2:+cancel+ :cancelled t)
                                    (,http2:+enhance-your-calm+ :resource-exhausted t)
                                    (,http2:+inadequate-security+ :permission-denied t)
                                    (,http2:+internal-error+ :internal t)
                                    (,http2:+no-error+ :internal t)
                                    (,http2:+protocol-error+ :internal t)
                                    (1234 :internal t))
        for error = (let ((code code))
                      (error-from (lambda (exchange)
                                    (http2:reset-stream (exchange-stream exchange) code))))
        do (is (eq status (grpc:rpc-error-status error)) "code ~D" code)
           (is (eq sent (grpc:rpc-error-sent-p error)) "code ~D" code)
           (is (eq :transport (grpc:rpc-error-ended-by error)))
           (is (search (http2:error-code-name code) (princ-to-string error)))))

(test early-good-end
  "A server may answer before it has read everything, and reset the stream without an error."
  (with-raw-server (address :at :headers)
      (fn (_peer exchange)
        (ok-response exchange (note-octets 9))
        (http2:reset-stream (exchange-stream exchange) http2:+no-error+))
    (grpc:with-channel (channel address)
      (is (= 9 (number-of (collect channel (lambda () (note 1 :body 1000))))))
      (is (equal '(9) (numbers (chat channel (lambda () (note 1 :body 1000)))))))))

(test early-ends-let-the-stream-go
  "If a server ends a call before it has the whole request and sends no more, the stream is reset
with NO_ERROR, which frees it at both ends. Calls that we end are reset with CANCEL."
  (let ((exchanges '()))
    (with-raw-server (address :at :headers)
        (fn (_peer exchange)
          (push exchange exchanges)
          (when (null (rest exchanges))
            (answer-fields exchange '((":status" . "200") ("content-type" . "application/grpc")
                                      ("grpc-status" . "12"))
                           :end t)))
      (flet ((code ()
               (assert (wait-until (lambda () (exchange-reset (first exchanges)))))
               (exchange-reset (first exchanges))))
        (grpc:with-channel (channel address)
          (is (typep (caught (grpc:receive (chat channel :open))) 'grpc:unimplemented))
          (is (= http2:+no-error+ (code)))
          (let ((call (chat channel :open)))
            (assert (wait-until (lambda () (rest exchanges))))
            (grpc:cancel call)
            (is (= http2:+cancel+ (code)))))))))

(test messages-in-pieces
  "A message that arrives in pieces, cut at any place, is joined."
  (let ((octets (concatenate 'octets (note-octets 1 :body 100) (note-octets 2)
                             (framed (octets-of)))))
    (loop for cut from 0 to (length octets) by 5
          do (let ((cut cut))
               (with-answer (channel) (lambda (exchange)
                                        (ok-response exchange (subseq-octets octets 0 cut)
                                                     (subseq-octets octets cut (length octets))))
                 (is (equal '(1 2 0) (numbers (watch channel (note 1))))))))))

(test metadata-waits-for-headers
  "CALL-METADATA waits for the headers or, if none come, for the call's end."
  (with-answer (channel)
      (lambda (exchange)
        (if (equalp (note-octets 1) (exchange-data-octets exchange))
            (answer-fields exchange `(,@*headers* ("x-a" . "1")))
            (answer-fields exchange `(,@*headers* ("grpc-status" . "0") ("x-b" . "2")) :end t)))
    (let ((call (watch channel (note 1))))
      (is (equal '(("x-a" . "1")) (grpc:call-metadata call)))
      (grpc:cancel call))
    (let ((call (watch channel (note 2))))
      (is (null (grpc:call-metadata call)))
      (is (equal '(("x-b" . "2")) (grpc:call-trailers call))))))

(test broken-server
  "Octets that are not HTTP/2 end the calls with that error; the next call connects again."
  (let ((first t))
    (with-raw-server (address)
        (lambda (peer exchange)
          (if (shiftf first nil)
              (send-octets peer (octets-of 0 0 4 1 4 0 0 0 1 255 255 255 255))
              (ok-response exchange (note-octets 7))))
      (grpc:with-channel (channel address)
        (let ((error (caught (ask channel (note 1) :timeout 5))))
          (is (typep error 'grpc:unavailable))
          (is (search "COMPRESSION_ERROR" (princ-to-string error))))
        (is (= 7 (number-of (ask channel (note 1)))))))))
