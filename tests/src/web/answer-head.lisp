;;;; The time when the head of an answer is sent if its handler is silent.

(in-package #:clgrpc.tests.web)

(defparameter *watch-requests*
  `((:connect "POST /lab.Bench/Watch" "application/connect+json"
              ,(format nil "~{~C~}{\"number\":1}" (mapcar #'code-char '(0 0 0 0 12))))
    (:grpc-web "POST /lab.Bench/Watch" "application/grpc-web-text" "AAAAAAIIAQ==")
    (:rest "POST /v1/watch" "application/json" "{\"number\":1}")
    (:rest-events "POST /v1/watch" "application/json" "{\"number\":1}"))
  "A request of each protocol to a stream, as *GOOD-REQUESTS* has them.")

(defun accepting (row)
  (if (eq :rest-events (first row)) "Accept: text/event-stream|" ""))

(defun heard-until (socket text)
  "The text from SOCKET until it has TEXT, with | for CR LF."
  (loop for octets = (hear-octets socket 1) then (concatenate 'octets octets more)
        for heard = (remove #\Return (substitute #\| #\Newline (map 'string #'code-char octets)))
        for more = (if (search text heard) (make-octets 0) (hear-octets socket 1))
        until (zerop (length more))
        finally (return heard)))

(defun ask-for-head (server row go)
  "The head of the answer of SERVER to a request of ROW over HTTP/1.1, and the text after it once GO
has been signalled."
  (with-plain-socket (socket (grpc:server-address server))
    (say-text socket (request-text row (format nil "~AConnection: close|Content-Length: ~D|"
                                               (accepting row) (length (fourth row)))
                                   (fourth row)))
    (let ((head (heard-until socket "||")))
      (signal-it go)
      (values head (hear-all socket)))))

(defun ask-for-fields (server row go)
  "The same over HTTP/2: the status, the fields, and all frames."
  (with-http2-socket (socket peer server)
    (say-frames socket peer `((:headers 1 ,(head-fields row))
                              (:data 1 ,(fourth row) :end-stream)))
    (let ((forms (hear-frames socket peer (lambda (forms) (answer-status forms 1)))))
      (signal-it go)
      (values (answer-status forms 1) (answer-fields forms 1)
              (hear-frames socket peer (lambda (forms) (stream-over-p forms 1)))))))

(test a-silent-handler-has-its-head-sent
  "It is sent after stream-head-seconds, so that pages and proxies know that the call has begun.
Metadata that the handler sends later are in the trailers."
  (let ((go (make-signal)))
    (with-all-protocols (server :stream-head-seconds 0.02)
        (:watch (fn (_request call)
                  (await-signal go)
                  (grpc:send-metadata call '(("x-late" . "yes")))
                  (grpc:send call (note 7))))
      (dolist (row *watch-requests*)
        (multiple-value-bind (head rest) (ask-for-head server row go)
          (is (search "200 OK" head) "~A: ~S" (first row) head)
          (unless (member (first row) '(:rest :rest-events :grpc-web))
            (is (search "\"metadata\":{\"x-late\":[\"yes\"]}" rest) "~A: ~S" (first row) rest)))
        (multiple-value-bind (status fields forms) (ask-for-fields server row go)
          (is (eql 200 status) "~A" (first row))
          (is (null (assoc "x-late" fields :test #'string=)))
          (is (null (reset-of forms 1)) "~A" (first row)))))))

(test metadata-that-is-sent-goes-out-at-once
  "The metadata are in the head, and do not wait for a message, in every protocol."
  (let ((go (make-signal)))
    (with-all-protocols (server :stream-head-seconds 3600)
        (:watch (fn (_request call)
                  (grpc:send-metadata call '(("x-early" . "yes")))
                  (await-signal go)))
      (dolist (row *watch-requests*)
        (is (search "|x-early: yes|" (ask-for-head server row go)) "~A" (first row))
        (is (assoc "x-early" (nth-value 1 (ask-for-fields server row go)) :test #'string=)
            "~A" (first row))))))

(test a-connection-ends-once-its-end-was-announced
  "The head of a stream of answers that begins before the request is whole announces the
connection's end, since the request may have none; so it ends, even if the rest comes."
  (let ((*bench-rules* '((:selector "lab.Bench.Chat" :post "/v1/chat" :body "*"))))
    (with-all-protocols (server)
        (:chat (lambda (stream call)
                 (grpc:do-messages (message stream) (grpc:send call message))))
      (with-plain-socket (socket (grpc:server-address server))
        (say-text socket (request-text '(:chat "POST /v1/chat" "application/json")
                                       "Transfer-Encoding: chunked|"
                                       (wire-text "c|{\"number\":1}|")))
        (is (search "|connection: close|" (heard-until socket "||")))
        (say-text socket (wire-text (concatenate 'string "0||" *behind*)))
        (is (equal '() (heard-statuses (hear-all socket))))))))

(test an-early-error-has-its-status
  "An error before the head is sent has one of REST's own statuses, also if the request is queued or
its body takes long."
  (with-all-protocols (server :stream-head-seconds 0.05) (:watch #'refuse)
    (let ((row (assoc :rest *watch-requests*)))
      (with-plain-socket (socket (grpc:server-address server))
        (say-text socket (request-text row (format nil "Connection: close|Content-Length: ~D|"
                                                   (length (fourth row)))
                                       (subseq (fourth row) 0 4)))
        (is (equalp #() (hear-octets socket 1 :seconds 0.2)))
        (say-text socket (subseq (fourth row) 4))
        (is (equal '(404) (heard-statuses (hear-all socket))))))))

(test answers-have-a-date
  "Good answers and errors have one over both versions of HTTP, as RFC 9110 section 6.6.1 requires."
  (with-counted-protocols (server calls)
    (flet ((dated-p (fields)
             (let ((date (cdr (assoc "date" fields :test #'string=))))
               (and date (= 29 (length date)) (uiop:string-suffix-p date " GMT")))))
      (dolist (row *good-requests*)
        (dolist (status '(200 nil))
          (let* ((body (if status (fourth row) "garbage"))
                 (forms (frames-answered server `((:headers 1 ,(head-fields row))
                                                  (:data 1 ,body :end-stream)))))
            (is (dated-p (answer-fields forms 1)) "~A: ~S" (first row) forms))))
      (dolist (path '("/none" "/v1/peek/x"))
        (is (dated-p (answer-fields
                      (frames-answered server `((:headers 1 ((":method" "GET") (":scheme" "http")
                                                             (":path" ,path) (":authority" "a"))
                                                          :end-stream)))
                      1)))))
    (is (plusp calls))))
