;;;; The protocols of the web: a server as it is, in a simulation, and a peer that calls it over
;;;; HTTP/1.1. An input is a request without framing: a line of method and target, lines of headers,
;;;; an empty line and the body, which goes in chunks. Whatever it says, the server answers with one
;;;; response of HTTP, logs no error but a handler's own, and keeps nothing; and it answers the same
;;;; if the body comes in other pieces.

(in-package #:clgrpc.tests.fuzz)

(defparameter *web-rules*
  '((:selector "lab.Bench.Ask" :post "/v1/ask/{number}" :body "*"
     :additional-bindings ((:get "/v1/ask/{text=*/x/**}:go") (:put "/v1/ask" :body "text")))
    (:selector "lab.Bench.Watch" :get "/v1/watch/{number}")
    (:selector "lab.Bench.Collect" :post "/v1/collect/{number}" :body "*")
    (:selector "lab.Bench.Chat" :post "/v1/chat" :body "*"))
  "The routes of REST that the server has.")

(defvar *web-simulation* nil)

(defparameter *web-options*
  '(:protocols (:grpc :grpc-web :connect :rest) :origins ("https://a.example")))

(defun call-with-web-rules (function)
  "Call FUNCTION, which starts a server that has the routes of *WEB-RULES*."
  (unwind-protect
       (progn (rest:use-http-rules *web-rules*)
              (funcall function))
    (rest:use-http-rules nil)))

(defun start-web-probe ()
  (call-with-web-rules
   (lambda ()
     (apply #'clgrpc.tests.server:start-probe
            (list :ask #'answer-ask :peek #'answer-ask :watch #'answer-watch
                  :collect #'answer-collect :chat #'answer-later)
            :listen "web:1" :execution :inline *web-options*))))

(defun start-web-server (simulation)
  (declare (ignore simulation))
  (sim:add-host "web" #'start-web-probe))

(defun web-simulation ()
  "The simulation with the server; it is made when needed."
  (or *web-simulation*
      (setf *web-simulation* (make-fuzzed-simulation #'start-web-server))))

;;; Requests

(defun web-head (octets)
  "OCTETS up to the empty line, as lines of HTTP, and where the body begins."
  (let* ((end (or (search (octets-of 10 10) octets) (length octets)))
         (lines (loop for octet across (subseq octets 0 end)
                      append (if (= 10 octet) '(13 10) (list octet)))))
    (values (coerce lines 'octets) (min (length octets) (+ end 2)))))

(defun chunk (octets)
  (join-octets (list (ascii-octets (format nil "~X~C~C" (length octets) #\Return #\Newline))
                     octets (octets-of 13 10))))

(defun chunks (octets size)
  "OCTETS in chunks of SIZE, and the last chunk, a list."
  (append (loop for start from 0 below (length octets) by size
                collect (chunk (subseq octets start (min (length octets) (+ start size)))))
          (list (octets-of 48 13 10 13 10))))

(defun web-portions (octets size)
  "What is said of OCTETS, an input, whose body goes in chunks of SIZE: a list."
  (multiple-value-bind (head start) (web-head octets)
    (list* head
           (ascii-octets (clgrpc.tests.server:wire-text "|Host: a|Transfer-Encoding: chunked||"))
           (chunks (subseq octets start) size))))

;;; Answers

(defun read-response (octets)
  "The status and the body of the responses that OCTETS are, and whether they end whole."
  (let ((parser (http1:make-parser :client)) (status nil) (body '()) (ends 0))
    (http1:expect-response parser "GET")
    (loop with at = 0
          for event = (multiple-value-bind (next event)
                          (http1:parse parser octets at (length octets))
                        (setf at next)
                        event)
          while event
          do (ecase event
               (:head (setf status (http1:message-status (http1:parser-message parser))))
               (:body (push (subseq octets (http1:parser-body-start parser)
                                    (http1:parser-body-end parser))
                            body))
               (:end (incf ends)
                (http1:next-message parser))))
    (list status (join-octets (reverse body)) ends)))

(defun web-server-process (simulation)
  (first (sim:host-processes (find "web" (sim::simulation-hosts simulation)
                                   :key #'sim:host-name :test #'equal))))

(defun hear-out (peer)
  "What PEER is sent, a list, the last first. What it has heard makes room for more."
  (loop for octets = (progn (sim:settle :timeout 1/100)
                            (join-octets (sim:hear peer)))
        until (zerop (length octets))
        collect octets into heard
        finally (return (reverse heard))))

(defun web-outcome (simulation portions)
  "What the server answers to PORTIONS, octets, as READ-RESPONSE returns it."
  (let ((peer (sim:connect-peer "web" 1)) (heard '()))
    (dolist (portion portions)
      (unless (sim:left-p peer)
        (sim:say peer portion)
        (setf heard (append (hear-out peer) heard))))
    (hang-up peer simulation)
    (check-fuzzed-server (web-server-process simulation))
    (read-response (join-octets (reverse heard)))))

(defun check-outcome (outcome)
  (destructuring-bind (status body ends) outcome
    (declare (ignore body))
    (unless status (found "no answer"))
    (unless (= 1 ends) (found "~D answers with the status ~D" ends status))))

(defun plain-body (body)
  "BODY, or what it says if it is base64 in pieces."
  (handler-case (multiple-value-bind (octets end)
                    (clgrpc.grpc-web::decode-groups body (length body))
                  (subseq octets 0 end))
    (invalid-base64 () body)))

(defun bad-outcome-p (outcome)
  "True if OUTCOME is that of a call that failed. Of several faults in a request, which is told
depends on what of it came first."
  (destructuring-bind (status body ends) outcome
    (declare (ignore ends))
    (let ((text (latin-text (plain-body body))))
      (or (/= 200 status)
          (search "error" text)
          (and (search "grpc-status: " text) (not (search "grpc-status: 0" text)))))))

(defun run-web (kind octets)
  (declare (ignore kind))
  (unless (and (plusp (length octets)) (<= 65 (aref octets 0) 90))
    (error 'connection-ended))          ; HTTP/2's, since no method of HTTP/1.1 begins so
  (call-in-fuzzed-simulation
   (web-simulation)
   (lambda (simulation)
     (let* ((whole (web-outcome simulation
                                (list (join-octets (web-portions octets (max 1 (length octets)))))))
            (size (1+ (below 9)))
            (cut (web-outcome simulation (web-portions octets size))))
       (check-outcome whole)
       (check-outcome cut)
       (unless (or (equalp whole cut) (and (bad-outcome-p whole) (bad-outcome-p cut)))
         (found "whole it is ~A, in chunks of ~D ~A" (shown-outcome whole) size
                (shown-outcome cut)))
       (unless (= 200 (first whole)) (error 'connection-ended))))))

(defun shown-outcome (outcome)
  (format nil "~D ~A" (first outcome) (shown (second outcome))))

;;; Inputs

(defun web-sample (kind head body)
  "A request of KIND, with HEAD, a text, and BODY, a text or octets."
  (make-sample :kind kind :octets (join-octets (list (string-octets head) (octets-of 10 10)
                                                     (coerce (if (stringp body)
                                                                 (string-octets body)
                                                                 body)
                                                             'octets)))))

(defun digits (octets)
  "OCTETS in base64 in pieces, each of which may be padded."
  (join-octets
   (loop with start = 0
         while (< start (length octets))
         collect (let ((end (min (length octets) (+ start 1 (below 20)))))
                   (prog1 (ascii-octets (encode-base64 octets :start start :end end
                                                              :padding (not (chance-p 20))))
                     (setf start end))))))

(defun mutate-web (sample siblings)
  "SAMPLE with changes in its head or in its body, which goes in base64 if it is a text."
  (let* ((octets (sample-octets sample))
         (start (+ 2 (search (octets-of 10 10) octets)))
         (head (subseq octets 0 (- start 2)))
         (body (subseq octets start))
         (other (sample-octets (pick siblings)))
         (others (subseq other (+ 2 (search (octets-of 10 10) other)))))
    (if (chance-p 3)
        (let ((tokens (text-tokens head)))
          (setf tokens (mutate-tokens tokens (text-tokens other)))
          (setf head (join-tokens tokens)))
        (loop repeat (times-to-mutate)
              do (setf body (mutate-octets body (vector others)))))
    (when (search "text" (latin-text head))
      (setf body (digits body))
      (when (chance-p 3) (setf body (mutate-octets body (vector body)))))
    (join-octets (list head (octets-of 10 10) body))))

(defun head-lines (&rest lines)
  (format nil "~{~A~^~%~}" lines))

(defun grpc-web-requests ()
  (flet ((sample (method type body &rest lines)
           (web-sample :grpc-web
                       (apply #'head-lines (format nil "POST /lab.Bench/~A HTTP/1.1" method)
                              (format nil "content-type: application/grpc-web~A" type) lines)
                       body)))
    (let ((json (framed (string-octets "{\"number\": 5, \"text\": \"x\"}"))))
      (list (sample "Ask" "" (note-frames 5) "x-grpc-web: 1" "grpc-timeout: 9S")
            (sample "Ask" "-text" (note-frames 5) "x-trace-bin: AAEC")
            (sample "Watch" "-text+proto" (note-frames 3) "origin: https://a.example")
            (sample "Watch" "+proto" (note-frames 4) "grpc-accept-encoding: gzip")
            (sample "Ask" "+json" json "accept: application/grpc-web+json")
            (sample "Collect" "+proto" (note-frames 1 2 3))
            (sample "Collect" "-text" (note-frames 1 20 3))
            (sample "Ask" "" (framed (octets-of 31 139 8 0 1 2 3) 1) "grpc-encoding: gzip")
            (sample "None" "" (note-frames 1))
            (sample "Ask" "" (join-octets (list (note-frames 5)
                                                (framed (string-octets "x-a: b") 128))))))))

(define-target "grpc-web"
  :samples #'grpc-web-requests :mutate #'mutate-web :run #'run-web
  :conditions (connection-ended) :seconds 1/20)

(defun connect-requests ()
  (flet ((sample (method type body &rest lines)
           (web-sample :connect
                       (apply #'head-lines (format nil "POST /lab.Bench/~A HTTP/1.1" method)
                              (format nil "content-type: application/~A" type)
                              "connect-protocol-version: 1" lines)
                       body))
         (proto (number) (subseq (note-frames number) 5))
         (json (text &optional (flag 0)) (framed (string-octets text) flag)))
    (list (sample "Ask" "proto" (proto 5) "connect-timeout-ms: 1000")
          (sample "Ask" "json" "{\"number\": \"5\", \"text\": \"\\u00e9\", \"body\": \"AAE=\"}"
                  "accept-encoding: gzip" "x-trace-bin: AAEC")
          (sample "Peek" "json; charset=utf-8" "{\"number\": 3}" "origin: https://a.example")
          (sample "Watch" "connect+proto" (note-frames 4) "connect-accept-encoding: gzip")
          (sample "Watch" "connect+json" (json "{\"number\": 3, \"text\": \"x\"}"))
          (sample "Collect" "connect+json" (join-octets (list (json "{\"number\": 3}")
                                                              (json "{\"text\": \"a\"}"))))
          (sample "Collect" "connect+proto" (note-frames 1 2 3) "connect-timeout-ms: 99999")
          (sample "Ask" "proto" (octets-of 31 139 8 0 1 2 3) "content-encoding: gzip")
          (sample "Collect" "connect+proto" (framed (octets-of 31 139 8 0) 1)
                  "connect-content-encoding: gzip")
          (sample "Collect" "connect+json" (join-octets (list (json "{\"number\": 3}")
                                                              (json "{}" 2)))))))

(define-target "connect"
  :samples #'connect-requests :mutate #'mutate-web :run #'run-web
  :conditions (connection-ended) :seconds 1/20)

(defun mutate-head (sample siblings)
  "SAMPLE, a request without a body, with changes in its target and headers."
  (let ((tokens (text-tokens (sample-octets sample)))
        (others (text-tokens (sample-octets (pick siblings)))))
    (loop repeat (times-to-mutate) do (setf tokens (mutate-tokens tokens others)))
    (join-tokens tokens)))

(defun get-requests ()
  (flet ((sample (query &rest lines)
           (web-sample :get (apply #'head-lines
                                   (format nil "GET /lab.Bench/Peek?~A HTTP/1.1" query) lines)
                       "")))
    (list (sample "connect=v1&encoding=json&message=%7B%22number%22%3A%203%7D")
          (sample "encoding=json&base64=1&message=eyJudW1iZXIiOjIxfQ" "accept-encoding: gzip")
          (sample "encoding=json&base64=1&message=eyJudW1iZXIiOjIxfQ==" "connect-timeout-ms: 50")
          (sample "encoding=proto&base64=1&compression=identity&message=CAU" "x-a-bin: AA")
          (sample "encoding=proto&message=%08%05%12%02%C3%A9&connect=v1")
          (sample "encoding=proto&base64=1&compression=gzip&message=H4sIAAAAAAAA"))))

(define-target "connect-get"
  :samples #'get-requests :mutate #'mutate-head :run #'run-web
  :conditions (connection-ended) :seconds 1/20)

(defun rest-requests ()
  (flet ((sample (line body &rest lines)
           (web-sample :rest
                       (apply #'head-lines (format nil "~A HTTP/1.1" line)
                              "content-type: application/json" lines)
                       body)))
    (list (sample "POST /v1/ask/5" "{\"text\": \"x\", \"body\": \"AAE=\"}" "grpc-timeout: 9S")
          (sample "PUT /v1/ask?number=7&body=-_8" "\"text\\u00e9\"" "x-server-timeout: 1.5")
          (sample "GET /v1/ask/a%20b/x/c%2Fd/e:go?number=3" "" "accept: */*")
          (sample "GET /v1/watch/4?text=a+b" "" "accept: text/event-stream;q=0.5, application/json")
          (sample "GET /v1/watch/3" "" "accept: application/x-ndjson")
          (sample "POST /v1/collect/3?x=1" "{\"text\": \"a\"}{\"text\": \"b\"}")
          (sample "POST /v1/collect/4" "[{\"text\": \"a\"}, {\"body\": \"\"}]")
          (sample "POST /v1/chat" "{\"number\": 1}
{\"number\": \"2\"}"))))

(define-target "rest"
  :samples #'rest-requests :mutate #'mutate-web :run #'run-web
  :conditions (connection-ended) :seconds 1/20)
