;;;; REST at a server, as curl sees it.

(in-package #:clgrpc.tests.rest)

(defclass library-service (library:library) ()
  (:documentation "A service whose answers have its requests."))

(defun told (request)
  (library:make-answer :request request :names (list (library:request-name request))))

(defmethod library-methods:get ((service library-service) request &key call)
  (grpc:send-metadata call '(("x-shelf" . "left")))
  (when (string= "none" (library:request-name request))
    (setf (grpc:call-trailers call) '(("x-last" . "word")))
    (grpc:fail :not-found "no such book"
               :details (list (google.rpc:make-error-info :reason "LENT"))))
  (when (string= "odd" (library:request-name request)) (grpc:fail 99 "out of the table"))
  (told request))

(defmethod library-methods:add ((service library-service) request &key)
  (told request))

(defmethod library-methods:put ((service library-service) request &key)
  (told request))

(defmethod library-methods:scan ((service library-service) request &key)
  (library:make-answer :scan (library:request-scan request)))

(defvar *left* nil "Signalled when an endless stream is left.")

(defmethod library-methods:watch ((service library-service) request &key call)
  (when (string= "endless" (library:request-name request))
    (unwind-protect (loop (grpc:send call (library:make-answer)))
      (signal-it *left*)))
  (dotimes (i (library:request-copies request))
    (grpc:send call (library:make-answer :count i)))
  (when (library:request-full request) (grpc:fail :aborted "enough")))

(defmethod library-methods:upload ((service library-service) stream &key)
  (let ((names '()))
    (grpc:do-messages (request stream)
      (push (library:book-name (library:request-book request)) names))
    (library:make-answer :names (nreverse names))))

(defun with-json (arguments)
  "ARGUMENTS of curl, in which @json is replaced."
  (loop for argument in arguments
        append (if (equal "@json" argument)
                   '("-H" "content-type: application/json")
                   (list argument))))

(defmacro with-library ((get &rest options) &body body)
  "Run BODY with GET, a function that returns curl's output for a request of a path and the status,
by each version of HTTP, at a server of the library with OPTIONS."
  `(call-with-library (list ,@options)
                      (lambda (function)
                        (flet ((,get (path &rest arguments)
                                 (apply function path (with-json arguments))))
                          ,@body))))

(defun call-with-library (options function)
  (with-started (server (apply #'grpc:start-server (make-instance 'library-service)
                               :listen "127.0.0.1:0" :protocols '(:grpc :rest) options))
    (dolist (version '("--http1.1" "--http2-prior-knowledge"))
      (funcall function
               (lambda (path &rest arguments)
                 (string-right-trim "|" (apply #'curl server path version
                                         "-w" " %{http_code}" arguments)))))))

(test requests-call-and-answers-come
  (with-library (ask)
    (is (string= "{\"name\":\"a b\",\"copies\":2} 200" (ask "/v1/books/a%20b?copies=2")))
    (is (string= "{\"request\":{\"name\":\"shelves/a/books/b\"},\"names\":[\"shelves/a/books/b\"]} 200"
                 (ask "/v1/shelves/a/books/b")))
    (is (string= "{\"request\":{\"book\":{\"name\":\"b\",\"pages\":3}},\"names\":[\"\"]} 200"
                 (ask "/v1/books/b" "-X" "PUT" "-d" "{\"book\":{\"pages\":3}}" "@json" "-H"
                      "content-encoding: identity")))
    (is (search "|x-shelf: left|" (ask "/v1/books/a" "-i")))
    (let ((head (ask "/v1/books/a" "-I")))
      (is (search "|x-shelf: left|" head))
      (is (null (search "{" head))))))

(test raw-bodies-go-both-ways
  (with-library (ask)
    (let ((answer (ask "/v1/books/b:scan" "-i" "-d" "raw {]" "-H" "content-type: image/x")))
      (is (search "|content-type: image/x|" answer))
      (is (search "||raw {] 200" answer)))))

(test errors-are-statuses-in-json
  "Errors of handlers with details and trailers, and of requests that call nothing."
  (with-library (ask)
    (let ((answer (ask "/v1/books/none" "-i")))
      (is (search "|content-type: application/json|" answer))
      (is (search "|trailer-x-last: word|" answer))
      (is (search "||{\"code\":5,\"message\":\"no such book\",\"details\":[{\"@type\":\"type.googleapis.com/google.rpc.ErrorInfo\",\"reason\":\"LENT\"}]} 404"
                  answer)))
    (is (search "{\"code\":12," (ask "/v1/any/x")))
    (is (search "{\"code\":99,\"message\":\"out of the table\"} 500" (ask "/v1/books/odd")))
    (is (search "\"message\":\"copies: takes an integer, uint32\"} 400"
                (ask "/v1/books/b?copies=x")))
    (is (search " 400" (ask "/v1/books/%zz")))
    (is (search "\"a parameter of the query has no name\"} 400" (ask "/v1/books/b?=x")))
    (is (string= "{\"code\":5,\"message\":\"there is nothing here\"} 404" (ask "/v1/none")))
    (let ((answer (ask "/v1/books/b" "-i" "-X" "DELETE")))
      (is (search "|allow: GET, HEAD, PUT|" answer))
      (is (search " 405" answer)))
    (let ((answer (ask "/v1/books/b" "-i" "-X" "OPTIONS")))
      (is (search "|allow: GET, HEAD, PUT|" answer))
      (is (search " 204" answer)))
    (is (search " 415" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "-H" "content-type: text/xml")))
    (is (search " 415" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "-H"
                            "content-type: application/json; charset=latin1")))
    (is (search " 415" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "-H"
                            "content-type: application/json; Charset=Latin1")))
    (is (search " 415" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "@json" "-H"
                            "content-encoding: br")))
    (is (search " 400" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "@json" "-H"
                            "content-encoding: gzip")))
    (is (search " 400" (ask "/v1/books/b" "-X" "PUT" "-d" "{" "@json")))))

(test streams-of-answers-are-one-body
  "In each form, with an error at the end and before the first answer."
  (with-library (ask)
    (flet ((in (accept query)
             (ask (format nil "/v1/files/a:watch?~A" query) "-H" (format nil "accept: ~A" accept))))
      (is (string= "[{},{\"count\":\"1\"}] 200" (in "*/*" "copies=2")))
      (is (string= "[] 200" (in "application/json" "")))
      (is (string= "{}|{\"count\":\"1\"}| 200" (in "application/x-ndjson" "copies=2")))
      (is (string= "data: {}||data: {\"count\":\"1\"}|| 200" (in "text/event-stream" "copies=2")))
      (loop for (accept cached) in '(("text/event-stream" nil) ("application/x-ndjson" t)
                                     ("application/json" t))
            for answer = (ask "/v1/files/a:watch" "-i" "-H" (format nil "accept: ~A" accept))
            do (is (search (format nil "|content-type: ~A" accept) answer))
               (is (eq cached (null (search "|cache-control: no-cache|" answer))) "~A" accept))
      (is (string= "[{},{\"error\":{\"code\":10,\"message\":\"enough\"}}] 200"
                   (in "*/*" "copies=1&full=true")))
      (is (string= "{\"code\":10,\"message\":\"enough\"} 409" (in "*/*" "full=true"))))))

(test a-head-ends-a-stream-of-answers
  "The handler does not send for ever what nobody gets."
  (with-library (ask)
    (setf *left* (make-signal))
    (is (search "|content-type: application/json|" (ask "/v1/files/endless:watch" "-I")))
    (is-true (await-signal *left*))))

(test streams-of-requests-are-one-body
  (with-library (ask)
    (is (string= "{\"names\":[\"a\",\"b\"]} 200"
                 (ask "/v1/uploads/x" "@json" "-d" "{\"name\":\"a\"} {\"name\":\"b\"}")))
    (is (string= "{\"names\":[\"a\"]} 200" (ask "/v1/uploads/x" "@json" "-d" "[{\"name\":\"a\"}]")))
    (is (string= "{\"names\":[\"a\"]} 200"
                 (ask "/v1/uploads/x" "-H" "content-type: application/x-ndjson" "-d"
                      "{\"name\":\"a\"}")))
    (is (search " 415" (ask "/v1/books/b" "-X" "PUT" "-d" "{}" "-H"
                            "content-type: application/x-ndjson")))
    (is (search " 415" (ask "/v1/uploads/x" "-d" "{}" "-H" "content-type: text/plain")))
    (is (search " 400" (ask "/v1/uploads/x" "@json" "-d" "[{\"name\":\"a\"}")))
    (is (string= "{} 200" (ask "/v1/uploads/x" "-d" "" "@json")))))

(test the-size-of-a-text-is-its-own
  "Room is promised for each message of a body, without the octets before it."
  (let ((sizes '()))
    (with-replaced (('clgrpc.web:receive-as-text (lambda (receive call size function)
                                                   (push size sizes)
                                                   (funcall receive call size function))))
      (with-library (ask)
        (setf sizes '())
        (is (search "[\"a\",\"bcd\"]"
                    (ask "/v1/uploads/n" "-d" "{\"name\":\"a\"}  {\"name\":\"bcd\"}" "@json")))
        (is (equal '(12 14) (reverse sizes)))))))

(test pages-of-other-origins-call-if-they-may
  "A preflight is answered; a request with effects that needs none is refused."
  (with-library (ask :origins '("https://a.example"))
    (flet ((preflight (origin)
             (ask "/v1/books/b" "-i" "-X" "OPTIONS" "-H" (format nil "origin: ~A" origin)
                  "-H" "access-control-request-method: PUT")))
      (is (search "|access-control-allow-origin: https://a.example|"
                  (preflight "https://a.example")))
      (is (null (search "access-control-allow-origin" (preflight "https://b.example")))))
    (flet ((from (origin)
             (ask "/v1/books/b:scan" "-i" "-d" "x" "-H" "content-type: text/plain"
                  "-H" (format nil "origin: ~A" origin))))
      (is (search " 200" (from "https://a.example")))
      (is (search "|access-control-allow-origin: https://a.example|" (from "https://a.example")))
      (is (search " 403" (from "https://b.example"))))
    (is (search "|access-control-allow-origin: https://a.example|"
                (ask "/v1/books/none" "-i" "-H" "origin: https://a.example")))))

(test bodies-that-are-too-long
  "They are refused with 413, whether or not they have a content-length."
  (with-library (ask :max-receive-octets 1000)
    (let ((body (format nil "{\"book\":{\"name\":\"~A\"}}"
                        (make-string 2000 :initial-element #\x))))
      (dolist (path '("/v1/books/b" "/v1/uploads/n"))
        (let ((http-method (if (search "uploads" path) "POST" "PUT")))
          (is (search " 413" (ask path "-X" http-method "-d" body "@json")))
          (is (search "\"code\":8,"
                      (ask path "-X" http-method "-d" body "@json" "-H"
                           "transfer-encoding: chunked"))))))))

(test deadlines-come-in-headers
  (with-library (ask)
    (is (search " 504" (ask "/v1/books/b" "-H" "grpc-timeout: 0m")))
    (is (search " 504" (ask "/v1/books/b" "-H" "x-server-timeout: 0.0")))
    (is (search " 200" (ask "/v1/books/b" "-H" "x-server-timeout: 20.5")))
    (is (search " 200" (ask "/v1/books/b" "-H" "x-server-timeout: 121474836485")))
    (is (search " 400" (ask "/v1/books/b" "-H" "x-server-timeout: soon")))
    (is (search " 400" (ask "/v1/books/b" "-H" "grpc-timeout: soon")))))

(test timeouts-are-decimal-seconds
  (loop for (text nanoseconds) in `(("0" 0) ("1.5" 1500000000) ("5." 5000000000) ("0.25" 250000000)
                                    ("0.0000000019" 1) ("12.000000001" 12000000001)
                                    ("999999999999" ,most-positive-fixnum)
                                    ("9999999999999") ("") (".5") ("1.2.3") ("1a") ("-1"))
        do (is (eql nanoseconds (clgrpc.rest::seconds-timeout text)) text)))

(test rules-beside-are-served
  "This holds as long as the rules are in force; wrong rules keep a server from starting."
  (unwind-protect
       (progn
         (use-http-rules '((:selector "clgrpc.tests.library.Library.Get" :get "/v9/{name}")))
         (with-library (ask)
           (is (search "\"name\":\"b\"" (ask "/v9/b")))
           (is (search "|allow: PUT|" (ask "/v1/books/b" "-i"))))
         (use-http-rules '((:selector "clgrpc.tests.library.Library.Get"
                            :get "/v1/{name=files/**}")))
         (signals misuse (with-library (ask) (ask "/")))
         (signals rule-error (openapi-handler "/openapi.json"
                                              (list (make-instance 'library-service)))))
    (use-http-rules nil))
  (signals rule-error (use-http-rules '((:selector "clgrpc.tests.library.Library.No" :get "/v1")))))

(test a-misspelt-protocol-is-recognized
  (is (search ":restt is not a protocol (is it :rest?); the protocols are :grpc, :"
              (handler-case (grpc:start-server (make-instance 'library-service)
                                               :protocols '(:restt))
                (misuse (error) (princ-to-string error))))))

(test the-document-is-served
  (is (search "service objects like those for START-SERVER, not \"Books\""
              (handler-case (openapi-handler "/openapi.json" "Books")
                (misuse (error) (princ-to-string error)))))
  (with-library (ask :http (list (openapi-handler "/openapi.json" (make-instance 'library-service)
                                                  :title "Books" :connect t)))
    (let* ((answer (ask "/openapi.json"))
           (document (parse-json (subseq answer 0 (search " 200" answer :from-end t)))))
      (is (equal "Books" (at document "info" "title")))
      (is (at document "paths" "/v1/books/{name}" "get"))
      (is (at document "paths" "/clgrpc.tests.library.Library/Silent" "post")))))

(test requests-for-the-document-are-quiet
  "They are not in logs and traces."
  (is-true (clgrpc.exchange:http-handler-quiet
            (openapi-handler "/openapi.json" (make-instance 'library-service)))))

(test a-document-is-not-made-for-each-request
  "Making it takes milliseconds: thousands of requests get the last document, and soon a new one. If
a document cannot be made, the error is logged and the last one is kept."
  (let* ((count 0) (now 0) (fails nil) (second rest::+document-time+)
         (document (rest::kept-document (lambda ()
                                          (when fails (error "no document"))
                                          (incf count))
                                        (lambda () now))))
    (flet ((ask (&optional (times 1)) (loop repeat times collect (funcall document))))
      (is (equal '(1) (remove-duplicates (ask 1000))))
      (setf now second)
      (is (equal '(2) (remove-duplicates (ask 1000))))
      (setf now (* 2 second)
            fails t)
      (is (typep (nth-value 1 (ignore-errors (ask))) 'simple-error))
      (is (equal '(2) (ask)) "the next request does not try again")
      (setf now (* 3 second)
            fails nil)
      (is (equal '(3) (ask)))
      (setf now 0)
      (is (equal '(4) (ask)) "the image was saved and the machine has started again"))))
