;;;; Answers.

(in-package #:clgrpc.tests.rest)

(defun answered (rule message)
  "The type and the body with which a method with RULE answers MESSAGE."
  (multiple-value-bind (type octets)
      (message-answer (first (rule-routes rule)) message)
    (list type (octets-string octets))))

(test answers-are-messages-or-one-field
  (let ((full (library:make-answer :request (library:make-request :name "n") :names '("a" "b")
                                   :count 5))
        (empty (library:make-answer)))
    (loop for (field of-full of-empty)
            in '((nil "{\"request\":{\"name\":\"n\"},\"names\":[\"a\",\"b\"],\"count\":\"5\"}" "{}")
                 ("request" "{\"name\":\"n\"}" "{}") ("names" "[\"a\",\"b\"]" "[]")
                 ("count" "\"5\"" "\"0\""))
          do (let ((rule (list* :get "/v1/a" (and field (list :response-body field)))))
               (is (equal (list "application/json" of-full) (answered rule full)))
               (is (equal (list "application/json" of-empty) (answered rule empty)))))))

(test raw-answers-are-as-they-are
  (flet ((scan (type) (library:make-answer :scan (google.api:make-http-body
                                                  :content-type type
                                                  :data (ascii-octets "abc")))))
    (let ((rule '(:get "/v1/a" :response-body "scan")))
      (is (equal '("image/x" "abc") (answered rule (scan "image/x"))))
      (is (equal '("application/octet-stream" "abc") (answered rule (scan ""))))
      (is (equal '("application/octet-stream" "abc")
                 (answered rule (scan (format nil "a/b~C~%x: y" #\Return)))))
      (is (equal '("application/octet-stream" "") (answered rule (library:make-answer)))))))

(test errors-are-statuses-with-their-details
  (flet ((text (&rest arguments) (octets-string (apply #'status-answer arguments))))
    (is (string= "{\"code\":5,\"message\":\"a \\\"b\\\"\"}" (text 5 "a \"b\"" nil)))
    (is (string= "{\"code\":99,\"message\":\"\"}" (text 99 "" (octets-of 255))))
    (is (string= "{\"code\":9,\"message\":\"m\",\"details\":[{\"@type\":\"type.googleapis.com/google.rpc.ErrorInfo\",\"reason\":\"R\"},{\"@type\":\"x/no.Such\",\"value\":\"CAE=\"}]}"
                 (text 9 "m" (protobuf:serialize
                              (google.rpc:make-status
                               :code 9
                               :details (list (protobuf:any-pack (google.rpc:make-error-info
                                                                  :reason "R"))
                                              (google.protobuf:make-any
                                               :type-url "x/no.Such"
                                               :value (octets-of 8 1))))))))))

(test the-form-of-a-stream-is-what-is-accepted
  (loop for (accept form) in '((nil :array) ("*/*" :array) ("application/json" :array)
                               ("text/event-stream" :events) ("application/x-ndjson" :lines)
                               ("text/html, application/jsonl;q=0.5" :lines)
                               ("application/json;q=0.25, text/event-stream;q=0.5" :events)
                               ("Application/JSON, text/event-stream;q=0.9" :array)
                               ("text/html" :array) ("text/event-stream;q=x" :array)
                               ("" :array) (",;q=,;" :array))
        do (is (eq form (stream-form accept)) "~S" accept)))

(defun streamed (form &rest items)
  (format nil "~{~A~}~A"
          (loop for item in items
                for first = t then nil
                collect (octets-string (stream-item form (ascii-octets item) first)))
          (octets-string (stream-close form (null items)))))

(test streams-are-one-body
  (is (string= "[1,2]" (streamed :array "1" "2")))
  (is (string= "[]" (streamed :array)))
  (is (string= (format nil "1~%2~%") (streamed :lines "1" "2")))
  (is (string= (format nil "data: 1~2%data: 2~2%") (streamed :events "1" "2")))
  (flet ((ended (form first)
           (octets-string (stream-status form (ascii-octets "{}") first))))
    (is (string= ",{\"error\":{}}]" (ended :array nil)))
    (is (string= "[{\"error\":{}}]" (ended :array t)))
    (is (string= (format nil "{\"error\":{}}~%") (ended :lines nil)))
    (is (string= (format nil "event: error~%data: {\"error\":{}}~2%") (ended :events t)))))
