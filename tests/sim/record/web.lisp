;;;; What a server answers to requests of the web's protocols, octet for octet.

(in-package #:clgrpc.tests.record)

(defparameter *requests*
  '(;; paths and their variables
    ("GET" "/v1/get/a%20b%2Fc") ("GET" "/v1/get/") ("GET" "/v1/get") ("GET" "/v1/get/a/b")
    ("GET" "/v1/single/a") ("GET" "/v1/shelves/1") ("GET" "/v1/shelves/1/books/2%2F3")
    ("GET" "/v1/files/a/b%2Fc/d") ("GET" "/v1/docs/a/tree/b/c") ("GET" "/v1/two/a/b")
    ("GET" "/v1/deep/1/2") ("GET" "/v1/typed/-7/18446744073709551615/true/1.5")
    ("GET" "/v1/typed/2147483648/1/true/1") ("GET" "/v1/typed/1/-1/true/1")
    ("GET" "/v1/typed/1/1/yes/1") ("GET" "/v1/typedenum/GREEN") ("GET" "/v1/typedenum/1")
    ("GET" "/v1/typedenum/MAUVE") ("GET" "/v1/typedbytes/-_8") ("GET" "/v1/typedbytes/!")
    ("GET" "/v1/wild/any/x/a") ("GET" "/v1/rest/a/b/c") ("GET" "/v1/snake/a")
    ("GET" "/v1/shelves/1:peek") ("GET" "/v1/literal:tally") ("GET" "/v1/prec/fixed")
    ("GET" "/v1/prec/a") ("GET" "/v1/prec/a/b") ("GET" "/v1/amb/y/x") ("GET" "/v2/many/a/b")
    ("GET" "/v1/manyanswer/a") ("HEAD" "/v1/head/a") ("HEAD" "/v1/get/a") ("GET" "/v1/%zz")
    ("DELETE" "/v1/get/a") ("OPTIONS" "/v1/get/a") ("GET" "/v1/unbound")
    ;; queries
    ("GET" "/v1/get/a?i32=1&tags=x&tags=y&nested.id=n&nested.inner.id=m")
    ("GET" "/v1/get/a?na+me=b") ("GET" "/v1/get/a?name=b") ("GET" "/v1/get/a?no=1")
    ("GET" "/v1/get/a?i32=") ("GET" "/v1/get/a?i32")
    ("GET" "/v1/get/a?i32=x") ("GET" "/v1/get/a?i32=1&i32=2") ("GET" "/v1/get/a?nested=x")
    ("GET" "/v1/get/a?tags=a+b%26c&&flag=true&color=GREEN&d=1e3&data=AQI")
    ("GET" "/v1/get/a?i64v=5&snakeCaseField=s&snake_case_field=t")
    ;; bodies
    ("POST" "/v1/create" () "{\"name\":\"a\",\"i32\":1,\"tags\":[\"x\"],\"nested\":{\"id\":\"n\"}}")
    ("POST" "/v1/create" () "{\"nam\":\"a\"}")
    ("POST" "/v1/create" () "{") ("POST" "/v1/create" () "") ("POST" "/v1/create" () "[]")
    ("POST" "/v1/create" (("content-type" "text/plain")) "{}")
    ("POST" "/v1/create" (("content-type" "application/json; charset=latin1")) "{}")
    ("POST" "/v1/create" (("content-type" "application/json; charset=\"UTF-8\"")) "{}")
    ("POST" "/v1/create" (("content-encoding" "br")) "{}") ("POST" "/v1/create?i32=1" () "{}")
    ("POST" "/v1/shelves/1/books?i32=2" () "{\"id\":\"n\"}") ("POST" "/v1/nobody/a" () "{}")
    ("POST" "/v1/nobody/a" () "") ("PUT" "/v1/replace/a" () "{\"i32\":3}")
    ("PUT" "/v1/replace/a" () "{\"name\":\"b\"}")
    ("PATCH" "/v1/patch/1" () "{\"inner\":{\"id\":\"m\"}}")
    ("DELETE" "/v1/remove/a") ("POST" "/v1/bodytags/a" () "[\"x\",\"y\"]")
    ("POST" "/v1/bodynesteds/a" () "[{\"id\":\"n\"}]") ("POST" "/v1/bodytext" () "\"t\"")
    ("POST" "/v1/bodywrapper" () "\"5\"") ("POST" "/v1/bodystructure" () "{\"k\":[1,null,true]}")
    ("POST" "/v1/many:nested" () "{\"id\":\"n\"}") ("REPORT" "/v1/report/a" () "{}")
    ("GET" "/v1/answer/message/a") ("GET" "/v1/answer/list?tags=x&tags=y") ("GET" "/v1/answer/text")
    ("GET" "/v1/answer/amount") ("POST" "/v1/get/a:archive" () "{}")
    ;; errors
    ("GET" "/v1/fail/1") ("GET" "/v1/fail/3?message=m&details=2") ("GET" "/v1/fail/5?details=3")
    ("GET" "/v1/fail/7?metadata=true")
    ("GET" "/v1/fail/99") ("GET" "/v1/fail/4") ("GET" "/v1/fail/8") ("GET" "/v1/fail/12")
    ("GET" "/v1/fail/16") ("GET" "/v1/fail/0?crash=true")
    ;; streams
    ("GET" "/v1/count/3") ("HEAD" "/v1/count/3") ("GET" "/v1/count/0")
    ("GET" "/v1/count/2?failAfter=1")
    ("GET" "/v1/count/2" (("accept" "text/event-stream"))) ("GET" "/v1/countfillers/2?size=3")
    ("POST" "/v1/collect" () "{\"name\":\"a\"}{\"name\":\"b\"}") ("POST" "/v1/collect" () "")
    ("POST" "/v1/collect" () "[{\"name\":\"a\"}]") ("POST" "/v1/chat" () "{\"name\":\"a\"}")
    ;; bodies that are not JSON
    ("POST" "/v1/upload/a" (("content-type" "image/png")) "png")
    ("POST" "/v1/uploadraw" (("content-type" "text/x")) "raw") ("POST" "/v1/uploadstream" () "abc")
    ("GET" "/v1/download/a?size=5&contentType=text/d")
    ("GET" "/v1/downloadstream/a?size=6&chunks=2")
    ("POST" "/v1/echobody" (("content-type" "text/x")) "echo")
    ;; metadata, deadlines, answers' coding, origins
    ("GET" "/v1/meta?send=x-a%3D1&sendTrailer=x-t%3D2"
     (("x-one" "1") ("x-one" "2") ("x-b-bin" "AQI")))
    ("GET" "/v1/meta" (("grpc-timeout" "3S")))
    ("GET" "/v1/get/a" (("accept-encoding" "gzip")))
    ("GET" "/v1/get/a" (("origin" "http://app.example")))
    ("GET" "/v1/get/a" (("origin" "http://other.example")))
    ("OPTIONS" "/v1/create"
     (("origin" "http://app.example") ("access-control-request-method" "POST")
      ("access-control-request-headers" "content-type,x-a")))
    ("OPTIONS" "/v1/create" (("origin" "http://other.example")
                             ("access-control-request-method" "POST")))
    ;; Connect
    ("POST" "/lab.web.v1.EchoService/Get" () "{\"name\":\"a\"}")
    ("POST" "/lab.web.v1.EchoService/Get" (("connect-protocol-version" "1")) "{\"no\":1}")
    ("POST" "/lab.web.v1.EchoService/Get" (("connect-protocol-version" "2")) "{}")
    ("POST" "/lab.web.v1.EchoService/Get" (("connect-timeout-ms" "x")) "{}")
    ("POST" "/lab.web.v1.EchoService/Get" (("content-type" "application/proto")) "")
    ("POST" "/lab.web.v1.EchoService/Get" (("content-type" "application/yaml")) "")
    ("POST" "/lab.web.v1.EchoService/None" () "{}") ("POST" "/lab.web.v1.NoService/Get" () "{}")
    ("GET" "/lab.web.v1.EchoService/Get?encoding=json&message=%7B%7D&connect=v1")
    ("GET" "/lab.web.v1.EchoService/Get?encoding=proto&base64=1&message=CgFh")
    ("POST" "/lab.web.v1.ErrorService/Fail" () "{\"code\":5,\"message\":\"m\",\"details\":1}")
    ("POST" "/lab.web.v1.StreamService/Count" (("content-type" "application/connect+json"))
     (0 "{\"count\":2}"))
    ("POST" "/lab.web.v1.StreamService/Count" (("content-type" "application/connect+json"))
     (0 "{\"count\":2,\"failAfter\":1}"))
    ("POST" "/lab.web.v1.StreamService/Collect" (("content-type" "application/connect+json"))
     (0 "{\"name\":\"a\"}" 0 "{\"name\":\"b\"}"))
    ("POST" "/lab.web.v1.StreamService/Collect" (("content-type" "application/connect+json"))
     (1 "{\"name\":\"a\"}"))
    ;; gRPC-Web
    ("POST" "/lab.web.v1.EchoService/Get" (("content-type" "application/grpc-web+json")) (0 "{}"))
    ("POST" "/lab.web.v1.ErrorService/Fail" (("content-type" "application/grpc-web+json"))
     (0 "{\"code\":9,\"message\":\"%é\",\"metadata\":true}"))
    ("POST" "/lab.web.v1.StreamService/Count" (("content-type" "application/grpc-web+json"))
     (0 "{\"count\":2}"))
    ("POST" "/lab.web.v1.EchoService/Get" (("content-type" "application/grpc-web-text")) "AAAAAAA=")
    ("POST" "/lab.web.v1.EchoService/Get" (("content-type" "application/grpc-web")) (2 "")))
  "Requests: the method, the target, fields, and the content: a text, or the flags and texts of
messages.")

(defun conformance-requests ()
  "Requests for each method of the service of the ConnectRPC suite, in JSON."
  (let ((head "'responseHeaders':[{'name':'x-h','value':['1','2']}]")
        (tail "'responseTrailers':[{'name':'x-t','value':['3']}]")
        (wrong "'error':{'code':'CODE_ABORTED','message':'no'}")
        (stream '(("content-type" "application/connect+json"))))
    (flet ((row (method fields content)
             (list "POST" (format nil "/connectrpc.conformance.v1.ConformanceService/~A" method)
                   fields content))
           (definition (control &rest arguments)
             (json (format nil "{'responseDefinition':{~?}}" control arguments))))
      (list (row "Unary" '(("x-own" "y") ("connect-timeout-ms" "5000"))
                 (definition "~A,~A,'responseData':'AQI='" head tail))
            (row "Unary" () (definition "~A,~A,~A" head tail wrong))
            (row "Unary" () "{}")
            (row "Unimplemented" () "{}")
            (row "IdempotentUnary" () (definition "'responseData':'AQI='"))
            (list "GET" (format nil "/connectrpc.conformance.v1.ConformanceService/~
                                     IdempotentUnary?encoding=json&message=%7B%7D"))
            (row "ClientStream" stream
                 (list 0 (definition "~A,~A,'responseData':'AQI='" head tail) 0 "{}"))
            (row "ClientStream" stream (list 0 (definition "~A" wrong)))
            (row "ServerStream" stream
                 (list 0 (definition "~A,~A,'responseData':['AQI=','Aw==']" head tail)))
            (row "ServerStream" stream
                 (list 0 (definition "'responseData':['AQI='],~A" wrong)))
            (row "BidiStream" stream '(0 "{}"))))))

(defparameter *line-end* (coerce '(#\Return #\Newline) 'string))

(defun content-of (content)
  "The octets of CONTENT of a request."
  (if (listp content)
      (apply #'concatenate 'octets
             (loop for (flags text) on content by #'cddr
                   for octets = (string-octets text)
                   collect (octets-of flags 0 0 0 (length octets)) ; they are short
                   collect octets))
      (string-octets content)))

(defun request-octets (method target &optional fields content)
  (let ((content (and content (content-of content))))
    (concatenate 'octets
                 (string-octets (format nil "~A ~A HTTP/1.1~A" method target *line-end*))
                 (string-octets
                  (format nil "~:{~A: ~A~A~}"
                          (loop for (name value)
                                  in (append '(("host" "lab")) fields
                                             (and content
                                                  (not (assoc "content-type" fields
                                                              :test #'string=))
                                                  '(("content-type" "application/json")))
                                             (and content
                                                  `(("content-length" ,(length content)))))
                                collect (list name value *line-end*))))
                 (string-octets *line-end*)
                 (or content (octets-of)))))

(defparameter *raw-requests*
  '("GET /v1/get/a HTTP/1.1||" "GET /v1/get/a HTTP/1.1|Host: lab|Host: lab||"
    "GET /v1/get/a HTTP/1.0||" "GET /v1/get/a HTTP/1.0|Connection: keep-alive||"
    "GET /v1/get/a HTTP/1.2|Host: lab||" "GET /v1/get/a HTTP/2.0|Host: lab||"
    "GET /v1/get/a http/1.1|Host: lab||" "GET  /v1/get/a HTTP/1.1|Host: lab||"
    "GET /v1/get/a|Host: lab||" "get /v1/get/a HTTP/1.1|Host: lab||"
    "|GET /v1/get/a HTTP/1.1|Host: lab||"
    "GET http://lab/v1/get/a HTTP/1.1|Host: other||" "OPTIONS * HTTP/1.1|Host: lab||"
    "options /lab.web.v1.EchoService/Get HTTP/1.1|Host: lab|Access-Control-Request-Method: POST||"
    "GET lab HTTP/1.1|Host: lab||" "GET /v1/get/a HTTP/1.1|Host: lab|X : y||"
    "GET /v1/get/a HTTP/1.1|Host: lab|X: a| b||" "GET /v1/get/a HTTP/1.1|Host: lab|: y||"
    "GET /v1/get/a HTTP/1.1|Host: lab|Connection: close||"
    "GET /v1/get/a HTTP/1.1|Host: lab||GET /v1/get/b HTTP/1.1|Host: lab||"
    "GET /v1/get/a HTTP/1.1|Host: lab|Upgrade: h2c|Connection: upgrade||"
    "POST /v1/create HTTP/1.1|Host: lab|Content-Length: 2|Content-Length: 2||{}"
    "POST /v1/create HTTP/1.1|Host: lab|Content-Length: 2, 3||{}"
    "POST /v1/create HTTP/1.1|Host: lab|Content-Length: -2||{}"
    "POST /v1/create HTTP/1.1|Host: lab|Content-Length: 99999999999999999999||{}"
    "POST /v1/create HTTP/1.1|Host: lab|Content-Length: 2|Transfer-Encoding: chunked||0||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: gzip||{}"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||1|{|1|}|0||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2;x=y|{}|0|X: y||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}|0|Content-Length: 3||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}x|0||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||g|{}|0||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked|||{}|0||"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||fffffffff|{}"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}|0|X: y__"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}|0|X: y|_"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}|0_|"
    "POST /v1/create HTTP/1.1|Host: lab|Transfer-Encoding: chunked||2|{}_0||"
    "POST /v1/create HTTP/1.1|Host: lab|Expect: 100-continue|Content-Length: 2||"
    "POST /v1/create HTTP/1.1|Host: lab|Expect: else|Content-Length: 2||{}"
    "GET /v1/get/a HTTP/1.1_Host: lab__" "GET /v1/get/a HTTP/1.1|Host: lab|X: ~||"
    "GET /v1/get/a HTTP/1.1|Host: lab|X: y")
  "Requests as they are sent; | is the end of a line, _ a line feed alone and ~ the octet 0.")

(defun raw-octets (text)
  "The octets of TEXT of *RAW-REQUESTS*."
  (ascii-octets (support:replaced (substitute #\Nul #\~ (substitute #\Newline #\_ text))
                                  "|" *line-end*)))

(defun write-answer (octets)
  "Write OCTETS, with | for the end of a line, as a line for the head and one for the content."
  (let* ((text (support:replaced (map 'string #'code-char octets) *line-end* "|"))
         (head (search "||" text))
         (start (if head (+ 2 head) (length text))))
    (format t "  ~A~%~@[  ~A~%~]" (printed (subseq text 0 start))
            (and (< start (length text)) (printed (subseq text start))))))

(test web-answers
  "To each request of the tables, in a connection of its own, comes the recorded answer."
  (sim:with-simulation (simulation)
    (sim:add-host "server"
                  (lambda ()
                    (grpc:start-server
                     (cons (make-instance 'testee:connect-service) (testee:lab-services))
                     :listen "server:80"
                     :protocols '(:grpc :grpc-web :connect :rest)
                     :origins '("http://app.example"))))
    (sim:on-host ((sim:add-host "client"))
      (support:check-record
       'web-answers
       (with-output-to-string (*standard-output*)
         (loop with *print-pretty* = nil
               for request in (append *requests* (conformance-requests) *raw-requests*)
               for peer = (sim:connect-peer "server" 80)
               do (sim:wait-for 1/10)
                  (sim:say peer (if (listp request)
                                    (apply #'request-octets request)
                                    (raw-octets request)))
                  (sim:wait-for 1)
                  (format t "~:[~S~;~{~S~^ ~}~]~%" (listp request) request)
                  (write-answer (apply #'concatenate 'octets (sim:hear peer)))
                  (format t "~:[~;closed~%~]" (sim:left-p peer))
                  (sim:hang-up peer)))))))
