;;;; Messages as JSON: every kind of field, the well-known types, the options.

(in-package #:clgrpc.tests.protobuf)

(define-proto "textual.proto")

(defun holder (&rest arguments)
  (apply #'clgrpc.test.textual:make-holder arguments))

(defun json= (text message &rest options)
  (string= (substitute #\" #\' text) (apply #'message-json message options)))

(test scalars-in-json
  (is (json= "{}" (all)))
  (is (json= "{'f1':0.5,'f2':'NaN','f3':-1,'f4':'-2','f5':3,'f6':'18446744073709551615','f13':true,'f14':'a\\n\\\"λ','f15':'+/8=','f16':'BLUE'}"
             (all :f1 0.5d0 :f2 (protobuf::bits-single #x7FC00000) :f3 -1 :f4 -2 :f5 3
                  :f6 (1- (expt 2 64)) :f13 t
                  :f14 (format nil "a~%\"λ") :f15 (octets-of #xFB #xFF) :f16 :blue)))
  (is (json= "{'f1':-0,'f2':3,'f16':77}" (all :f1 -0d0 :f2 3f0 :f16 77)))
  (is (json= "{'f1':'Infinity','f2':'-Infinity'}"
             (all :f1 sb-ext:double-float-positive-infinity
                  :f2 sb-ext:single-float-negative-infinity)))
  (is (json= "{'o3':0,'o14':'','p17':{}}"
             (all :o3 0 :o14 "" :p17 (clgrpc.test:make-inner)))
      "present fields are written though they are zero"))

(test repeated-fields-and-maps-in-json
  (is (json= "{'r3':[1,-2],'r13':[true,false],'r16':['RED',9],'r17':[{'a':1},{}]}"
             (all :r3 '(1 -2) :r13 '(t nil) :r16 '(:red 9)
                  :r17 (list (clgrpc.test:make-inner :a 1) (clgrpc.test:make-inner)))))
  (is (json= "{'m1':{'x':1},'m2':{'-5':{'s':'y'}},'m3':{'true':'t'},'m5':{'3':'GREEN'}}"
             (all :m1 '(("x" . 1)) :m2 (list (cons -5 (clgrpc.test:make-inner :s "y")))
                  :m3 '((t . "t")) :m5 '((3 . :green))))))

(test options-of-json
  (let ((message (holder :snake-case "a" :renamed "b" :shapes '(:circular))))
    (is (json= "{'shapes':['ROUND'],'snakeCase':'a','other name':'b'}" message))
    (is (json= "{'shapes':['ROUND'],'snake_case':'a','renamed':'b'}" message :proto-names t))
    (is (json= "{'shapes':[1],'snakeCase':'a','other name':'b'}" message :enum-numbers t))
    (is (json= (format nil "{~%  'shapes': [~%    'ROUND'~%  ],~%  'snakeCase': 'a',~%  'other name': 'b'~%}")
               message :indent 2))
    (is (equalp (string-octets (message-json message)) (message-json message :as :octets))))
  (is (json= "{'a':0,'s':'','xs':[],'children':{}}" (clgrpc.test:make-inner) :defaults t))
  (is (json= "{}" (all :f3 0)))
  (is (json= "{}" (clgrpc.test:make-inner) :indent 2))
  (signals misuse (message-json (clgrpc.test:make-inner) :indent t))
  (signals misuse (message-json (clgrpc.test:make-inner) :indent 17)))

(defun any (message)
  (google.protobuf:make-any
   :type-url (format nil "type.googleapis.com/~A" (message-type-name (message-type-of message)))
   :value (serialize message)))

(test well-known-types-in-json
  (is (json= "{'duration':'1.500s','mask':'a.fooBar,b','time':'1970-01-01T00:00:01Z','wrapped':'7','octets':'AQ=='}"
             (holder :duration (google.protobuf:make-duration :seconds 1 :nanos 500000000)
                     :mask (google.protobuf:make-field-mask :paths '("a.foo_bar" "b"))
                     :time (google.protobuf:make-timestamp :seconds 1)
                     :wrapped (google.protobuf:make-int64-value :value 7)
                     :octets (google.protobuf:make-bytes-value :value (octets-of 1)))))
  (is (json= "{'any':{'@type':'type.googleapis.com/clgrpc.test.Inner','a':3}}"
             (holder :any (any (clgrpc.test:make-inner :a 3)))))
  (is (json= "{'any':{'@type':'type.googleapis.com/google.protobuf.Duration','value':'2s'}}"
             (holder :any (any (google.protobuf:make-duration :seconds 2)))))
  (is (json= "{'any':{},'no':null}" (holder :any (google.protobuf:make-any) :no :null-value))))

(test what-has-no-json
  (flet ((refused (message &rest options)
           (handler-case (progn (apply #'message-json message options) nil)
             (message-print-error (condition) (princ-to-string condition)))))
    (is-true (refused (holder :time (google.protobuf:make-timestamp :nanos -1))))
    (is-true (refused (holder :duration (google.protobuf:make-duration :seconds 1 :nanos -1))))
    (is-true (refused (holder :mask (google.protobuf:make-field-mask :paths '("fooBar")))))
    (is-true (refused (holder :value (google.protobuf:make-value))))
    (is-true (refused (holder :value (google.protobuf:make-value
                                      :number-value (protobuf::double-nan)))))
    (is-true (refused (holder :any (google.protobuf:make-any :type-url "x/no.such.Type"))))
    (is (search "clgrpc.test.textual.Holder as JSON"
                (refused (holder :any (any (clgrpc.test:make-inner))) :finder (constantly nil))))))

(test extensions-in-json
  (let* ((message (base "count" 300 "names" '("a")))
         (text (message-json message)))
    (is (search "\"[clgrpc.test.extension.count]\":300" text))
    (is (message= message (parse-json-message (message-type-of message) text)))))

(test strings-that-are-not-utf-8-have-no-json
  "This holds for values and for keys of a map, which proto2 does not check."
  (define "raw.proto" "syntax = \"proto2\"; package clgrpc.test.raw;
                       message Raw { optional string s = 1; map<string, string> m = 2; }")
  (dolist (octets '("0a0261ff" "12070a0261ff120178" "12070a0178120261ff"))
    (let ((message (parse-message "clgrpc.test.raw.Raw" (unhex octets))))
      (signals message-print-error (message-json message))
      (is (equal octets (hex (serialize message)))))))

(test types-of-peers-that-are-called-like-those-with-a-form
  "A peer's type may have the name of a type with a form of its own in JSON, but other fields."
  (let* ((field (google.protobuf:make-field-descriptor-proto
                 :name "odd" :number 1 :type :type-string :label :label-repeated))
         (names '("Any" "Timestamp" "Duration" "Struct" "Value" "ListValue" "StringValue"))
         (pool (make-type-pool
                (serialize
                 (google.protobuf:make-file-descriptor-set
                  :file (list (google.protobuf:make-file-descriptor-proto
                               :name "odd.proto" :package "google.protobuf"
                               :message-type
                               (loop for name in names
                                     collect (google.protobuf:make-descriptor-proto
                                              :name name :field (list field))))))))))
    (dolist (name names)
      (let* ((type (find-pool-type pool (format nil "google.protobuf.~A" name)))
             (message (parse-message type (unhex "0a0178"))))
        (is (equal "{\"odd\":[\"x\"]}" (message-json message)) name)
        (is (message= message (parse-json-message type (message-json message))))
        (is (equal "odd: \"x\"" (string-right-trim '(#\Newline) (message-text message))) name)
        (is (message= message (parse-text-message type (message-text message))))))))
