;;;; The attacks of attack.lisp over HTTP/2, where a flag of a frame marks the end of a body: heads
;;;; that are malformed (RFC 9113 section 8), bodies that are not as long as their heads say,
;;;; trailers that come in parts, streams that are reset or stand still. None reaches a handler.

(in-package #:clgrpc.tests.web)

(defun refused-p (forms)
  "True if stream 1 was refused in FORMS: answered with 400 to 499, reset, or ended with its
connection."
  (or (eq :protocol-error (reset-of forms 1))
      (eq :protocol-error (goaway-of forms))
      (<= 400 (or (answer-status forms 1) 0) 499)))

(defun without-field (name fields)
  (remove name fields :key #'first :test #'string=))

(defun broken-heads (row)
  "Malformed heads, each made from a good one of ROW, with a word for each."
  (let ((head (head-fields row)))
    (flet ((with (&rest more) (append head more)))
      `(("connection" ,(with '("connection" "close")))
        ("keep-alive" ,(with '("keep-alive" "timeout=5")))
        ("proxy-connection" ,(with '("proxy-connection" "keep-alive")))
        ("transfer-encoding" ,(with '("transfer-encoding" "chunked")))
        ("upgrade" ,(with '("upgrade" "h2c")))
        ("te" ,(with '("te" "gzip")))
        ("path twice" ((":path" "/v1/peek/1") ,@head))
        ("method twice" ((":method" "GET") ,@head))
        ("scheme twice" ((":scheme" "https") ,@head))
        ("authority twice" ((":authority" "b") ,@head))
        ("unknown pseudo" ((":other" "x") ,@head))
        ("a status" ((":status" "200") ,@head))
        ("pseudo behind fields" ,(append (cdr head) (list (car head))))
        ("path behind fields" ,(append (without-field ":path" head) '((":path" "/v1/ask"))))
        ("no path" ,(without-field ":path" head))
        ("no method" ,(without-field ":method" head))
        ("no scheme" ,(without-field ":scheme" head))
        ("empty path" ,(cons '(":path" "") (without-field ":path" head)))
        ("another host" ,(with '("host" "b")))
        ("upper case" ,(with '("X-Lab" "v")))
        ("name with a space" ,(with '("x lab" "v")))
        ("name with a colon" ,(with '("x:lab" "v")))
        ("empty name" ,(with '("" "v")))
        ("CR LF in a value" ,(with `("x-lab" ,(format nil "a~C~Cb: c" #\Return #\Newline))))
        ("NUL in a value" ,(with `("x-lab" ,(format nil "a~Cb" (code-char 0)))))
        ("two lengths" ,(with '("content-length" "1") '("content-length" "2")))
        ("length with a sign" ,(with '("content-length" "+5")))
        ("length below zero" ,(with '("content-length" "-1")))
        ("a list of lengths" ,(with '("content-length" "5, 5")))
        ("length in hexadecimal" ,(with '("content-length" "0x5")))
        ("empty length" ,(with '("content-length" "")))))))

(test malformed-heads-over-http2
  "They reach no handler, in any protocol."
  (with-counted-protocols (server calls)
    (dolist (row *good-requests*)
      (loop for (word fields) in (broken-heads row)
            do (let ((forms (frames-answered server `((:headers 1 ,fields)
                                                      (:data 1 ,(fourth row) :end-stream)))))
                 (is (refused-p forms) "~A, ~A: ~S" (first row) word forms))))
    (is (zerop calls))))

(test bodies-that-are-not-as-long-as-they-say
  "A content-length that differs from the frames makes a request malformed, at the end of the stream
or before it; a correct one is served."
  (with-counted-protocols (server calls)
    (dolist (row *good-requests*)
      (let* ((body (fourth row)) (length (length body)))
        (flet ((answered (said &rest frames)
                 (frames-answered
                  server `((:headers 1 ,(head-fields row `("content-length"
                                                           ,(format nil "~D" said))))
                           ,@frames))))
          (dolist (said (list 0 1 (1- length) (1+ length) 100))
            (is (refused-p (answered said `(:data 1 ,body :end-stream))) "~A ~D" (first row) said))
          (is (refused-p (answered length `(:data 1 ,body) '(:data 1 "x" :end-stream))))
          (is (refused-p (answered length `(:data 1 ,(subseq body 1))
                                   '(:headers 1 (("x-last" "1")) :end-stream))))
          (is (zerop calls))
          (is (eql 200 (answer-status (answered length `(:data 1 ,(subseq body 0 3))
                                                `(:data 1 ,(subseq body 3) (:pad 7))
                                                '(:data 1 "" :end-stream))
                                      1))
              "~A" (first row))
          (is (= 1 calls))
          (setf calls 0))))))

(test trailers-of-requests
  "Trailers end a request and are no metadata; trailers with pseudo-fields, without the end of the
stream, or with other frames within or after them make it malformed."
  (let ((seen '()) (calls 0))
    (with-all-protocols (server)
        (:ask (lambda (request call)
                (incf calls)
                (push (assoc "x-late" (grpc:call-metadata call) :test #'string=) seen)
                request)
         :collect (handling (stream)
                    (grpc:do-messages (message stream) message)
                    (incf calls)
                    (note 1)))
      (dolist (row *good-requests*)
        (flet ((answered (&rest frames)
                 (frames-answered server `((:headers 1 ,(head-fields row))
                                           (:data 1 ,(fourth row))
                                           ,@frames))))
          (is (eql 200 (answer-status (answered '(:headers 1 (("x-late" "1") ("grpc-timeout" "0S"))
                                                  :end-stream))
                                      1))
              "~A" (first row))
          (is (= 1 calls))
          (dolist (frames '(((:headers 1 (("x-late" "1"))))
                            ((:headers 1 ((":path" "/v1/peek/1")) :end-stream))
                            ((:headers 1 ((":status" "200")) :end-stream))
                            ((:headers 1 (("connection" "close")) :end-stream))
                            ((:headers 1 (("X-Late" "1")) :end-stream))
                            ((:headers 1 (("x-late" "1")) :end-stream :open) (:ping 1))
                            ((:headers 1 (("x-late" "1")) :end-stream :open) (:data 1 "x"))
                            ((:headers 1 (("x-late" "1")) :end-stream :open)
                             (:headers 3 (("x-late" "1")) :end-stream))
                            ((:headers 1 (("x-late" "1")) :end-stream :open)
                             (:continuation 3 #.(make-octets 0)))))
            (is (refused-p (apply #'answered frames)) "~A ~S" (first row) frames))
          (is (= 1 calls))
          (setf calls 0))))
    (is (every #'null seen))))

(test requests-that-are-reset
  "Requests that are reset before their bodies are complete call nothing and leave nothing; if there
are very many, their connection ends. Others are served."
  (with-counted-protocols (server calls :max-reset-burst 100 :max-resets-per-second 1)
    (dolist (row *good-requests*)
      (with-http2-socket (socket peer server)
        (loop for id from 1 by 2
              repeat 200
              do (say-frames socket peer `((:headers ,id ,(head-fields row))
                                           (:data ,id ,(subseq (fourth row) 0 3))
                                           (:rst-stream ,id :cancel))))
        (is (eq :enhance-your-calm (goaway-of (hear-frames socket peer #'goaway-of)))
            "~A" (first row))))
    (is (zerop calls))
    (is (eql 200 (answer-status (frames-answered server
                                                 (let ((row (first *good-requests*)))
                                                   `((:headers 1 ,(head-fields row))
                                                     (:data 1 ,(fourth row) :end-stream))))
                                1)))))

(test bodies-that-stand-still-over-http2
  "A body that stops arriving ends at the deadline of its call, and delays no other stream of the
connection."
  (with-counted-protocols (server calls)
    (dolist (row *good-requests*)
      (let* ((name (if (member (first row) '(:connect :connect-stream))
                       '("connect-timeout-ms" "100")
                       '("grpc-timeout" "100m")))
             (forms (frames-answered server `((:headers 1 ,(head-fields row name))
                                              (:data 1 ,(subseq (fourth row) 0 3))
                                              (:headers 3 ,(head-fields row))
                                              (:data 3 ,(fourth row) :end-stream))
                                     :streams '(1 3))))
        (is (eql 200 (answer-status forms 3)) "~A: ~S" (first row) forms)
        (is (member (answer-status forms 1) '(200 504)) "~A: ~S" (first row) forms)))
    (is (= (length *good-requests*) calls))))

(test a-body-that-nobody-reads
  "A stream over HTTP/2 whose handler does not read takes only its window, and the others of the
connection continue."
  (let ((go (make-signal)))
    (with-all-protocols (server :max-held-octets 65536)
        (:ask #'double
         :collect (handling (stream)
                    (await-signal go)
                    (let ((count 0))
                      (grpc:do-messages (message stream) message (incf count))
                      (note count))))
      (dolist (row (list (assoc :connect-stream *good-requests*)))
        (with-http2-socket (socket peer server)
          (say-frames socket peer `((:headers 1 ,(head-fields row))))
          (loop repeat 200 do (say-frames socket peer `((:data 1 ,(fourth row)))))
          (let ((ask (first *good-requests*)))
            (say-frames socket peer `((:headers 3 ,(head-fields ask))
                                      (:data 3 ,(fourth ask) :end-stream))))
          (is (eql 200 (answer-status (hear-frames socket peer
                                                   (lambda (forms) (stream-over-p forms 3)))
                                      3)))
          (say-frames socket peer '((:data 1 "" :end-stream)))
          (signal-it go)
          (let ((forms (hear-frames socket peer (lambda (forms) (stream-over-p forms 1)))))
            (is (eql 200 (answer-status forms 1)))))))))

(test pages-over-http2
  "The rules for pages of other origins are the same: a request that needs no preflight reaches no
handler, no foreign origin is named, and a listed one is."
  (with-counted-protocols (server calls :origins '("https://a.example"))
    (flet ((ask (http-method path &rest fields)
             (let ((forms (frames-answered
                           server `((:headers 1 ((":method" ,http-method) (":scheme" "http")
                                                 (":path" ,path) (":authority" "a") ,@fields)
                                              ,@(unless (string= "POST" http-method)
                                                  '(:end-stream)))
                                    ,@(when (string= "POST" http-method)
                                        '((:data 1 "{}" :end-stream)))))))
               (values (answer-status forms 1)
                       (cdr (assoc "access-control-allow-origin" (answer-fields forms 1)
                                   :test #'string=))))))
      (dolist (path '("/lab.Bench/Ask" "/lab.Bench/Watch" "/v1/ask" "/v1/watch"))
        (dolist (origin *foreign-origins*)
          (dolist (type '("text/plain" "text/plain;application/json"
                          "multipart/form-data;boundary=x" "application/x-www-form-urlencoded"))
            (multiple-value-bind (status allowed)
                (ask "POST" path `("origin" ,origin) `("content-type" ,type))
              (is (member status '(403 415)) "~A ~A ~A: ~A" path origin type status)
              (is (null allowed))))
          (multiple-value-bind (status allowed)
              (ask "OPTIONS" path `("origin" ,origin) '("access-control-request-method" "POST"))
            (is (eql 403 status) "~A ~A: ~A" path origin status)
            (is (null allowed))))
        (is (equal '(204 "https://a.example")
                   (multiple-value-list
                    (ask "OPTIONS" path '("origin" "https://a.example")
                         '("access-control-request-method" "POST")
                         '("access-control-request-headers" "content-type")))))))
    (is (zerop calls))))
