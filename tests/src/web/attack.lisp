;;;; Requests that can be understood in two ways, that never end, or that cost the server more than
;;;; the peer, in each protocol. They are answered with an HTTP status from 400 to 499, reach no
;;;; handler, and leave nothing behind.

(in-package #:clgrpc.tests.web)

(defparameter *bench-rules*
  '((:selector "lab.Bench.Ask" :post "/v1/ask" :body "*" :additional-bindings ((:get "/v1/ask")))
    (:selector "lab.Bench.Peek" :get "/v1/peek/{number}")
    (:selector "lab.Bench.Watch" :post "/v1/watch" :body "*")
    (:selector "lab.Bench.Collect" :post "/v1/collect" :body "*"
     :additional-bindings ((:post "/v1/collect/numbers" :body "number"))))
  "Routes of REST.")

(defun call-with-rules (function)
  (rest:use-http-rules *bench-rules*)
  (unwind-protect (funcall function) (rest:use-http-rules nil)))

(defun nothing-left-p (server)
  "True if SERVER holds no call and no octets, and its loops have had no error."
  (and (loop for server-loop in (server:server-loops server)
             always (zerop (server::server-loop-open server-loop)))
       (zerop (account-sum (server::server-account server)))))

(defmacro with-all-protocols ((server &rest options) (&rest handlers) &body body)
  "Evaluate BODY with SERVER, a server of a probe with HANDLERS that speaks all protocols and holds
nothing afterwards."
  `(call-with-rules
    (lambda ()
      (with-probe (channel :server ,server
                           :options (list :protocols '(:grpc :grpc-web :connect :rest) ,@options))
          (,@handlers)
        ,@body
        (eventually (nothing-left-p ,server))))))

(defmacro with-counted-protocols ((server calls &rest options) &body body)
  "Evaluate BODY with SERVER, of all protocols, and CALLS, the number of handlers called."
  `(let ((,calls 0))
     (with-all-protocols (,server ,@options)
         (:ask (handling (request) (incf ,calls) request)
          :watch (handling () (incf ,calls) nil)
          :collect (handling (stream)
                     (grpc:do-messages (message stream) message)
                     (incf ,calls)
                     (note 1))
          :peek (handling (request) (incf ,calls) request))
       ,@body)))

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
  "A request of ROW, of *GOOD-REQUESTS*, with FIELDS, lines that end with |, and BODY, a text whose
lines end with | as well; the value is octets."
  (destructuring-bind (line type) (subseq row 1 3)
    (concatenate 'string (wire-text (format nil "~A HTTP/1.1|Host: a|Content-Type: ~A|~A|"
                                            line type fields))
                 body)))

(defun in-chunks (body)
  (wire-text (format nil "~(~X~)|~A|0||" (length body) body)))

(defparameter *behind* "GET /v1/peek/1 HTTP/1.1|Host: a|Connection: close||"
  "The request behind another on its connection.")

(defun heard-statuses (text)
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
  "Fields that give the end of a body in two ways, or in none.")

(test bodies-that-end-in-two-places
  "A request whose head does not clearly say where its body ends is refused, in every protocol; the
connection ends, and the octets after it are not read as a request."
  (let ((calls 0))
    (with-all-protocols (server)
        (:ask (handling (request) (incf calls) request)
         :collect (handling () (incf calls) (note 1))
         :peek (handling (request) (incf calls) request))
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
  "Malformed bodies in chunks.")

(test chunks-that-are-broken
  "A malformed chunk ends the call and is answered with 400, not with a server's error."
  (let ((calls 0))
    (with-all-protocols (server)
        (:ask (handling (request) (incf calls) request)
         :collect (handling (stream)
                    (grpc:do-messages (message stream) message)
                    (incf calls)
                    (note 1))
         :peek (handling (request) (incf calls) request))
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
  "If a body is refused before it is complete, the octets after it are not answered. A complete body
may be followed by another request."
  (with-all-protocols (server :max-receive-octets 100)
      (:ask #'double :collect #'add-up :peek #'double)
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

(test pages-cannot-call-without-asking
  "A request that a page of another origin may send without a preflight reaches no handler, in any
protocol; and such a page can read no answer."
  (let ((calls 0))
    (with-all-protocols (server :origins '("https://a.example"))
        (:ask (handling (request) (incf calls) request)
         :watch (handling () (incf calls) nil))
      (dolist (path '("/lab.Bench/Ask" "/lab.Bench/Watch" "/v1/ask" "/v1/watch"))
        (dolist (type '("text/plain" "text/plain; application/json"
                        "multipart/form-data; boundary=x"
                        "application/x-www-form-urlencoded" "TEXT/PLAIN;charset=utf-8" nil))
          (dolist (body '("{}" ""))
            (dolist (origin '("https://b.example" "null" "https://a.example.b.example"
                              "https://b.a.example" "http://a.example" "https://a.example:8443"))
              (let ((text (answers server
                                   (format nil "POST ~A HTTP/1.1|Host: a|Origin: ~A|~
                                                Connection: close|~@[Content-Type: ~A|~]~
                                                Content-Length: ~D||~A"
                                           path origin type (length body) body))))
                (is (member (first (heard-statuses text)) '(403 415)) "~A ~A ~S ~A: ~S" path type
                    body origin text)
                (is (null (search "access-control" text)) "~A ~A: ~S" path origin text)))))
        (dolist (http-method '("GET" "HEAD"))
          (unless (and (string= "/v1/ask" path)) ; its author lets everybody get that
            (is (equal '(405)
                       (heard-statuses
                        (answers server
                                 (format nil "~A ~A?encoding=json&message=%7B%7D HTTP/1.1|Host: a|~
                                              Connection: close|Origin: https://b.example||"
                                         http-method path)))))))))
    (is (zerop calls))))

(test messages-have-their-limits-in-json
  "A server's limits for the memory of messages hold for JSON as well, in every protocol."
  (with-all-protocols (server :max-decoded-octets 1000) (:ask #'double)
    (dolist (name '(:connect :rest))
      (loop for (count status) in '((3 200) (200 400))
            do (let ((body (format nil "{\"parts\":[~{~A~^,~}]}" (loop repeat count collect "{}"))))
                 (is (equal (list status)
                            (heard-statuses
                             (answers server
                                      (request-text (find name *good-requests* :key #'first)
                                                    (format nil "Connection: close|~
                                                                 Content-Length: ~D|"
                                                            (length body))
                                                    body))))
                     "~A, ~D" name count))))))

(defparameter *foreign-origins*
  '("null" "https://a.example.b.example" "https://ba.example" "https://a.exampl"
    "https://a.example/" "https://a.example:443" "HTTPS://a.example" "http://a.example"
    "https://user@a.example" "https://a.example https://b.example" "*" "https://%61.example")
  "Origins that are not https://a.example.")

(test preflights-of-foreign-origins
  "They are refused for each path, and no answer names the origin; the answers to a listed origin
depend on it: good ones, errors, and those to requests without a route."
  (with-all-protocols (server :origins '("https://a.example"))
      (:ask #'refuse :peek #'double)
    (flet ((ask (line &rest fields)
             (answers server (format nil "~A HTTP/1.1|Host: a|Connection: close|~{~A|~}|" line
                                     fields))))
      (dolist (path '("/lab.Bench/Ask" "/lab.Bench/Peek" "/v1/ask" "/v1/none" "/lab.Bench/None"))
        (flet ((preflight (origin)
                 (ask (format nil "OPTIONS ~A" path) (format nil "Origin: ~A" origin)
                      "Access-Control-Request-Method: POST"
                      "Access-Control-Request-Headers: content-type")))
          (let ((text (preflight "https://a.example")))
            (is (equal '(204) (heard-statuses text)) "~A: ~S" path text)
            (is (search "|access-control-allow-origin: https://a.example|" text))
            (is (search "|vary: origin, access-control-request-method" text)))
          (dolist (origin *foreign-origins*)
            (let ((text (preflight origin)))
              (is (equal '(403) (heard-statuses text)) "~A ~A: ~S" path origin text)
              (is (null (search "access-control" text)))
              (is (null (search origin text)) "~A: ~S" origin text)))))
      (dolist (line '("GET /v1/peek/1" "GET /v1/peek/x" "GET /v1/none" "DELETE /v1/peek/1"
                      "GET /v1/ask" "GET /lab.Bench/None?connect=v1"
                      "GET /lab.Bench/Peek?encoding=json&message=%7B%7D"
                      "GET /lab.Bench/Peek?encoding=json&message=%7B"))
        (is (search "|vary: origin|" (ask line)) "~A" line)
        (let ((text (ask line "Origin: https://a.example")))
          (is (search "|access-control-allow-origin: https://a.example|" text) "~A: ~S" line text))
        (is (null (search "access-control" (ask line "Origin: https://b.example"))))))))

(test requests-that-nothing-has
  "The answer to such a request has the form of the protocol that it clearly uses."
  (with-all-protocols (server) (:ask #'double)
    (flet ((post (path type &rest fields)
             (answers server (format nil "POST ~A HTTP/1.1|Host: a|Connection: close|~
                                          Content-Type: ~A|~{~A|~}Content-Length: 2||{}"
                                     path type fields))))
      (dolist (text (list (post "/lab.Bench/None" "application/proto")
                          (post "/none.None/None" "application/connect+json")
                          (post "/none" "application/json" "Connect-Protocol-Version: 1")
                          (answers server (format nil "GET /x.Y/Z?connect=v1 HTTP/1.1|Host: a|~
                                                       Connection: close||"))))
        (is (search "404 Not Found|" text))
        (is (search "||{\"code\":\"unimplemented\",\"message\":\"unknown service or method /" text)
            "~S" text))
      (let ((text (post "/none" "application/json")))
        (is (search "404 Not Found|content-type: application/json|" text))
        (is (search "||{\"code\":5,\"message\":\"there is nothing here\"}" text) "~S" text))
      (is (search "grpc-status: 12" (post "/none.None/None" "application/grpc-web"))))))

(test handlers-of-http-come-before-protocols
  "No protocol answers a path with a handler of HTTP or, beside a fallback, any path."
  (with-all-protocols (server :http (list (grpc:http-handler "/a/" (fn (_request)
                                                                     (values 200 '() "mine")))))
      (:ask #'double)
    (is (search "||mine" (answers server "GET /a/b HTTP/1.1|Host: a|Connection: close||")))
    (is (search "not with this method" (answers server (format nil "PUT /a/b HTTP/1.1|Host: a|~
                                                             Connection: close||")))))
  (with-all-protocols (server :fallback (fn (_http-method target _headers _body)
                                          (values 200 '() target)))
      (:ask #'double)
    (is (search "||/none" (answers server "GET /none HTTP/1.1|Host: a|Connection: close||")))))

(test bodies-that-do-not-come
  "A body has a time limit over HTTP/1.1; a call whose body stops ends with 408."
  (with-all-protocols (server :http1-body-timeout-seconds 0.2)
      (:ask #'double :collect #'add-up)
    (dolist (row *good-requests*)
      (let ((text (answers server (request-text row "Content-Length: 100|"
                                                (subseq (fourth row) 0 3)))))
        (is (equal '(408) (heard-statuses text)) "~A: ~S" (first row) text)))))

(test bodies-that-drip
  "A body of known length has a time limit over HTTP/1.1, though a part arrives now and then."
  (with-all-protocols (server :http1-body-timeout-seconds 0.3)
      (:ask #'double :collect #'add-up)
    (loop for (name begin) in `((:connect "{") (:rest "{")
                                (:connect-stream ,(map 'string #'code-char '(0 0 0 3 232))))
          do (with-plain-socket (socket (grpc:server-address server))
               (say-text socket (request-text (assoc name *good-requests*) "Content-Length: 1000|"
                                              begin))
               (is (equal '(408)
                          (heard-statuses
                           (loop repeat 900
                                 for heard = (hear-all socket :seconds 0.02)
                                 when (plusp (length heard)) return heard
                                 do (say-text socket " ")
                                 finally (return ""))))
                   "~A" name)))))

(defun heard-while-dripping (socket text &key (seconds 0.02))
  "The text from SOCKET, on which TEXT is sent again and again, each time after SECONDS."
  (loop repeat 900
        for heard = (hear-all socket :seconds seconds)
        when (plusp (length heard)) return heard
        do (say-text socket text)
        finally (return "")))

(test chunks-that-drip
  "A body in chunks has the same time limit as one of known length: parts of a message do not renew
it. A complete message does, so a stream may take longer."
  (with-all-protocols (server :http1-body-timeout-seconds 1)
      (:ask #'double :collect #'add-up)
    (let ((chunked "Transfer-Encoding: chunked|"))
      (loop for (name begin) in `((:connect "{") (:rest "{") (:rest-stream "{")
                                  (:connect-stream ,(map 'string #'code-char '(0 0 0 3 232))))
            do (with-plain-socket (socket (grpc:server-address server))
                 (say-text socket (request-text (assoc name *good-requests*) chunked
                                                (wire-text (format nil "~(~X~)|~A|" (length begin)
                                                                   begin))))
                 (is (equal '(408) (heard-statuses
                                    (heard-while-dripping socket (wire-text "1| |"))))
                     "~A" name)))
      (let* ((row (assoc :connect-stream *good-requests*)) (body (fourth row))
             (chunk (wire-text (format nil "~(~X~)|~A|" (length body) body))))
        (with-plain-socket (socket (grpc:server-address server))
          (say-text socket (request-text row chunked chunk))
          (loop repeat 8                ; longer than a body may take
                do (is (equal "" (hear-all socket :seconds 0.2)))
                   (say-text socket chunk))
          (say-text socket (wire-text "0||"))
          (is (equal '(200) (heard-statuses (hear-all socket :seconds 1)))))))))

(defparameter *bad-json*
  (flet ((times (count text) (format nil "~v@{~A~:*~}" count text)))
    `(("{\"number\":1,\"number\":2}" "twice")
      (,(format nil "{\"number\":~A}" (times 100000 "9")) "json-number-length")
      ("{\"number\":1e1000000000}" "int64")
      ("{\"number\":1e-1000000000}" "int64")
      (,(times 300000 "[") "array")
      (,(format nil "{\"number\":~A}" (times 300000 "[")) "number")
      ("{\"number\":NaN}" "value expected")
      ("{\"text\":\"\\ud800\"}" "lone surrogate")
      ("{\"number\":1}{}" "end of the text")
      (,(format nil "~C{}" (code-char #xEF)) "octet EF")
      ("{\"body\":\"=\"}" "body")))
  "JSON that is no note, and a word of what is said of it.")

(test json-that-is-none
  "Malformed JSON is refused with 400 and a short text, in every protocol."
  (let ((calls 0))
    (with-all-protocols (server)
        (:ask (handling (request) (incf calls) request))
      (loop for (body word) in *bad-json*
            do (dolist (row (list (assoc :connect *good-requests*) (assoc :rest *good-requests*)))
                 (let ((text (answers server (request-text row (format nil "Content-Length: ~D|~
                                                                            Connection: close|"
                                                                       (length body))
                                                           body))))
                   (is (equal '(400) (heard-statuses text)) "~S: ~S" body text)
                   (is (search word text) "~S: ~S" body text)
                   (is (> 1000 (length text)))))))
    (is (zerop calls))))

(defun answers-octets (server text)
  "As ANSWERS, for TEXT whose characters are octets."
  (with-plain-socket (socket (grpc:server-address server))
    (say-text socket text)
    (hear-all socket)))

(defun gzipped (octets)
  "OCTETS as a compressed message, with its prefix."
  (let ((byte-buffer (clgrpc.wire::compress-octets (clgrpc.encoding:encoding-of-name
                                                    (clgrpc.encoding:check-compression :gzip))
                                                   9
                                                   (concatenate 'octets (make-octets 5) octets)
                                                   (+ 5 (length octets)))))
    (subseq-octets (clgrpc.wire:encoded-octets byte-buffer)
                   0 (clgrpc.wire:encoded-length byte-buffer))))

(defun bomb (octets)
  "A message of OCTETS octets, compressed, with its prefix."
  (gzipped (make-octets octets)))

(test bombs
  "A short body that becomes long when decompressed is refused, in unary calls and in streams, and
so is one that is not compressed as announced."
  (let ((long (bomb 5000000)) (calls 0))
    (with-all-protocols (server :max-receive-octets 100000)
        (:ask (handling (request) (incf calls) request)
         :collect (handling (stream)
                    (grpc:do-messages (message stream) (incf calls))
                    (note 1)))
      (flet ((post (row header body)
               (answers-octets server
                               (request-text row (format nil "~A|Content-Length: ~D|~
                                                              Connection: close|"
                                                         header (length body))
                                             (map 'string #'code-char body)))))
        (loop for (name header status) in '((:connect "Content-Encoding: gzip" 429)
                                            (:rest "Content-Encoding: gzip" 413)
                                            (:connect-stream "Connect-Content-Encoding: gzip" 200)
                                            (:grpc-web "Grpc-Encoding: gzip" 200))
              for row = (assoc name *good-requests*)
              for envelope = (= 200 status)
              do (let ((text (post row header (if envelope long (subseq long 5)))))
                   (is (equal (list status) (heard-statuses text)) "~A: ~S" name text)
                   (is (search "compressed message of more than 100000 octets" text)))
                 (unless envelope
                   (is (equal '(400) (heard-statuses (post row header (subseq (bomb 999) 5 20))))
                       "~A" name)))))
    (is (zerop calls))))

(test texts-that-speak-of-compression
  "If a handler's error has the status and the text of a message that cannot be decompressed, as
from behind a gateway, the client's body is not blamed."
  (let ((error nil))
    (with-all-protocols (server)
        (:ask (handling ()
                (apply #'grpc:fail error)))
      (loop for (its status text limit-of-rest) in
            '((:connect 500 "compressed message is corrupt")
              (:rest 500 "compressed message is corrupt")
              (:rest 429 "compressed message of more than 4194304 octets received, limit 4194304"))
            for row = (assoc its *good-requests*)
            do (setf error (list (if (= 429 status) :resource-exhausted :internal) text))
               (is (equal (list status)
                          (heard-statuses
                           (answers server (request-text row (format nil "Content-Length: ~D|~
                                                                          Connection: close|"
                                                                     (length (fourth row)))
                                                         (fourth row)))))
                   "~A ~A" its text)))))

(defun with-spaces (text)
  "TEXT, JSON, as octets with spaces that gzip compresses to almost nothing."
  (ascii-octets (format nil "~A~2000@T" text)))

(test compressed-messages-wait-for-their-turn
  "Messages of a peer that owes time wait, in each protocol; its other messages do not."
  (with-all-protocols (server)
      (:ask #'double :peek #'double
       :collect (handling (stream)
                  (grpc:do-messages (message stream) message)
                  (note 1)))
    (with-plain-socket (socket (grpc:server-address server))
      (eventually (budgets server))
      (dolist (owed '(nil t))
        (when owed
          (dolist (budget (budgets server))
            (clgrpc.server::charge-time budget 1000000000000 25)))
        (flet ((check (name compressed text)
                 (is (eq (and owed compressed) (and (search "deadline" (string-downcase text)) t))
                     "~A: ~S" name text)))
          (loop
            for (name header timeout envelope)
              in '((:connect "Content-Encoding" "Connect-Timeout-Ms: ~D" nil)
                   (:rest "Content-Encoding" "Grpc-Timeout: ~Dm" nil)
                   (:connect-stream "Connect-Content-Encoding" "Connect-Timeout-Ms: ~D" t)
                   (:grpc-web "Grpc-Encoding" "Grpc-Timeout: ~Dm" t))
            for row = (assoc name *good-requests*)
            do (dolist (compressed '(nil t))
                 (let* ((plain (with-spaces "{\"number\":21}"))
                        (frame (if compressed (gzipped plain) (framed plain)))
                        (body (if envelope frame (subseq frame 5))))
                   (check name compressed
                          (answers-octets
                           server
                           (request-text
                            row
                            (format nil "~@[~A: gzip|~]~@?|Content-Length: ~D|Connection: close|"
                                    (and compressed header) timeout
                                    (if (and owed compressed) 50 30000) (length body))
                            (map 'string #'code-char body)))))))
          (dolist (compressed '(nil t))
            (check :get compressed
                   (answers server
                            (format nil "GET ~A HTTP/1.1|Host: a|Connect-Timeout-Ms: ~D|~
                                         Connection: close||"
                                    (if compressed
                                        (long-get (subseq (gzipped (with-spaces "{}")) 5)
                                                  "compression=gzip")
                                        (long-get (with-spaces "{}")))
                                    (if (and owed compressed) 50 30000))))))))))

(test content-codings-have-names
  "Their case does not matter, and x-gzip is gzip (RFC 9110 section 8.4.1); others are refused."
  (with-all-protocols (server) (:ask #'double)
    (dolist (row (list (assoc :connect *good-requests*) (assoc :rest *good-requests*)))
      (let ((body (subseq (gzipped (ascii-octets (fourth row))) 5)))
        (loop for (coding . statuses) in '(("gzip" 200) ("GZIP" 200) ("x-gzip" 200) ("X-GZip" 200)
                                           ("br" 415 501) ("gzip2" 415 501) ("gzip, gzip" 415 501))
              do (let ((text (answers-octets
                              server
                              (request-text row (format nil "Content-Encoding: ~A|Connection: ~
                                                             close|Content-Length: ~D|"
                                                        coding (length body))
                                            (map 'string #'code-char body)))))
                   (is (member (first (heard-statuses text)) statuses) "~A ~A: ~S" (first row)
                       coding text)))))))

(test streams-that-are-left
  "Many clients leave their streams at once: each call is cancelled, and nothing is held."
  (let ((open 0) (cancelled 0) (lock (sb-thread:make-mutex)))
    (with-all-protocols (server :execution :inline)
        (:watch (fn (_request call)
                  (sb-thread:with-mutex (lock) (incf open))
                  (grpc:on-cancel call (lambda () (sb-thread:with-mutex (lock) (incf cancelled))))
                  (grpc:try-send call (note 1))
                  call))
      (let ((sockets '()))
        (unwind-protect
             (loop for (line type body) in
                   `(("POST /lab.Bench/Watch" "application/connect+json"
                      ,(format nil "~{~C~}{}" (mapcar #'code-char '(0 0 0 0 2))))
                     ("POST /lab.Bench/Watch" "application/grpc-web-text" "AAAAAAA=")
                     ("POST /v1/watch" "application/json" "{}"))
                   do (loop repeat 30
                            do (let ((socket (connect-socket (grpc:server-address server))))
                                 (push socket sockets)
                                 (say-text socket (request-text
                                                   (list nil line type)
                                                   (format nil "Content-Length: ~D|" (length body))
                                                   body))))
                   finally (eventually (= 90 open)))
          (mapc #'close-socket sockets)))
      (eventually (= 90 cancelled)))))
