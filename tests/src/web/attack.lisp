;;;; Requests that are made to be understood in two ways, that never end, or that take more than
;;;; they give, against each protocol. What is wrong with them is answered with a status of HTTP of
;;;; 400 to 499, reaches no handler, and leaves nothing behind.

(in-package #:clgrpc.tests.web)
(in-suite :clgrpc.web)

(defparameter *bench-rules*
  '((:selector "lab.Bench.Ask" :post "/v1/ask" :body "*" :additional-bindings ((:get "/v1/ask")))
    (:selector "lab.Bench.Peek" :get "/v1/peek/{number}")
    (:selector "lab.Bench.Watch" :post "/v1/watch" :body "*")
    (:selector "lab.Bench.Collect" :post "/v1/collect" :body "*"))
  "Routes of REST.")

(defun call-with-rules (function)
  (rest:use-http-rules *bench-rules*)
  (unwind-protect (funcall function) (rest:use-http-rules nil)))

(defun nothing-left-p (server)
  "True if SERVER holds no call and no octet, and its loops have no error behind them."
  (and (loop for server-loop in (server::server-loops server)
             always (zerop (server::server-loop-open server-loop)))
       (zerop (account-sum (server::server-account server)))))

(defmacro with-all-protocols ((server &rest options) (&rest handlers) &body body)
  "Evaluate BODY with SERVER a server of a probe with HANDLERS that speaks all protocols, and that
holds nothing afterwards."
  `(call-with-rules
    (lambda ()
      (with-probe (channel :server ,server
                           :options (list :protocols '(:grpc :grpc-web :connect :rest) ,@options))
          (,@handlers)
        ,@body
        (is-true (wait-until (lambda () (nothing-left-p ,server))))))))

(defparameter *good-requests*
  `((:connect "POST /lab.Bench/Ask" "application/json" "{\"number\":21}")
    (:connect-stream "POST /lab.Bench/Collect" "application/connect+json"
                     ,(format nil "~{~C~}{\"number\":21}" (mapcar #'code-char '(0 0 0 0 13))))
    (:grpc-web "POST /lab.Bench/Ask" "application/grpc-web+json"
               ,(format nil "~{~C~}{\"number\":21}" (mapcar #'code-char '(0 0 0 0 13))))
    (:grpc-web-text "POST /lab.Bench/Ask" "application/grpc-web-text" "AAAAAAIIFQ==")
    (:rest "POST /v1/ask" "application/json" "{\"number\":21}")
    (:rest-stream "POST /v1/collect" "application/json" "{\"number\":21}"))
  "A request of each protocol: its line, its content type and its body.")

(defun request-text (row fields body)
  "A request of ROW, of *GOOD-REQUESTS*, with FIELDS, lines that end with |, and BODY, as octets of
a text, whose lines end with | as well."
  (destructuring-bind (line type) (subseq row 1 3)
    (concatenate 'string (wire-text (format nil "~A HTTP/1.1|Host: a|Content-Type: ~A|~A|"
                                            line type fields))
                 body)))

(defun in-chunks (body)
  (wire-text (format nil "~(~X~)|~A|0||" (length body) body)))

(defparameter *behind* "GET /v1/peek/1 HTTP/1.1|Host: a|Connection: close||"
  "The request behind another on its connection.")

(defun heard-statuses (text)
  "The statuses of the responses in TEXT."
  (loop for start = (search "HTTP/1.1 " text) then (search "HTTP/1.1 " text :start2 (1+ start))
        while start
        collect (parse-integer text :start (+ start 9) :end (+ start 12))))

(defparameter *two-ways*
  '(("Content-Length: ~D|Transfer-Encoding: chunked|" :chunks)
    ("Transfer-Encoding: chunked|Content-Length: 4|" :chunks)
    ("Content-Length: ~D|Content-Length: 1|" :bare)
    ("Content-Length: ~D, ~:*~D|" :bare)
    ("Content-Length: +~D|" :bare)
    ("Content-Length: -1|" :bare)
    ("Content-Length: 0x~X|" :bare)
    ("Content-Length: 99999999999999999999|" :bare)
    ("Content-Length:| ~D|" :bare)
    ("Content-Length : ~D|" :bare)
    ("Transfer-Encoding:| chunked|" :chunks)
    ("Transfer-Encoding: gzip|" :chunks)
    ("Transfer-Encoding: identity|Content-Length: ~D|" :bare)
    ("Transfer-Encoding: chunked|Transfer-Encoding: identity|" :chunks))
  "Fields that say in two ways, or in none, where a body ends.")

(test bodies-that-end-in-two-places
  "A request whose head does not say plainly where its body ends is refused, whatever protocol it is
of; the connection ends, and what is behind is not read as a request."
  (let ((calls 0))
    (with-all-protocols (server)
        (:ask (lambda (request call) (declare (ignore call)) (incf calls) request)
         :collect (lambda (stream call) (declare (ignore stream call)) (incf calls) (note 1))
         :peek (lambda (request call) (declare (ignore call)) (incf calls) request))
      (dolist (row *good-requests*)
        (loop for (fields form) in *two-ways*
              do (let* ((body (fourth row))
                        (text (answers server
                                       (concatenate
                                        'string
                                        (request-text row (format nil fields (length body))
                                                      (if (eq :chunks form) (in-chunks body) body))
                                        *behind*)))
                        (statuses (heard-statuses text)))
                   (is (and (= 1 (length statuses)) (member (first statuses) '(400 501))
                            (search "|connection: close|" text))
                       "~A with ~A: ~S" (first row) fields text)))))
    (is (zerop calls))))

(defparameter *broken-chunks*
  '("zz|~A|0||" "-1|~A|0||" "1|~A|0||" "ffffffffffffffff1|~A|0||" "|~A|0||" "0x5|~A|0||")
  "Bodies in chunks that are none.")

(test chunks-that-are-broken
  "What is no chunk ends the call and is answered with 400, not with an error of the server's."
  (let ((calls 0))
    (with-all-protocols (server)
        (:ask (lambda (request call) (declare (ignore call)) (incf calls) request)
         :collect (lambda (stream call)
                    (declare (ignore call))
                    (grpc:do-messages (message stream) message)
                    (incf calls)
                    (note 1))
         :peek (lambda (request call) (declare (ignore call)) (incf calls) request))
      (dolist (row *good-requests*)
        (dolist (broken *broken-chunks*)
          (let ((text (answers server (concatenate
                                       'string
                                       (request-text row "Transfer-Encoding: chunked|" "")
                                       (wire-text (format nil broken (fourth row)))
                                       *behind*))))
            (is (equal '(400) (heard-statuses text)) "~A with ~S: ~S" (first row) broken text)))))
    (is (zerop calls))))

(test a-refusal-in-the-middle-is-the-last-answer
  "A body that is refused before it has come leaves the connection nowhere: what is behind it is not
answered. A body that is whole may be followed by another request."
  (with-all-protocols (server :max-receive-octets 100)
      (:ask #'double :collect #'sum-up :peek #'double)
    (dolist (row *good-requests*)
      (let* ((body (fourth row)) (length (length body)))
        (is (equal '(200 200)
                   (heard-statuses
                    (answers server (concatenate
                                     'string
                                     (request-text row (format nil "Content-Length: ~D|" length)
                                                   body)
                                     *behind*))))
            "~A" (first row))
        ;; GET /v1... within the body of a request is no request
        (let ((text (answers server
                             (concatenate
                              'string
                              (request-text row (format nil "Content-Length: ~D|"
                                                        (+ 200 (length *behind*)))
                                            (make-string 200 :initial-element #\A))
                              *behind*))))
          (is (= 1 (length (heard-statuses text))) "~A: ~S" (first row) text))))))
