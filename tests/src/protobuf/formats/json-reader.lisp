;;;; JSON as messages: accepted and refused texts, the places of errors, ignored members, and
;;;; limits. Mutated texts are in tests/whole/fuzz.

(in-package #:clgrpc.tests.protobuf)

(defun unquote (text)
  (substitute #\" #\' text))

(defun json-all (text &rest options)
  (apply #'parse-json-message "clgrpc.test.All" (unquote text) options))

(defun json-holder (text &rest options)
  (apply #'parse-json-message "clgrpc.test.textual.Holder" (unquote text) options))

(test json-comes-back
  (dolist (message (list (all) (all :f1 0.1d0 :f2 1f-45 :f4 -9 :f15 (octets-of 1 2 3) :f16 -3
                                    :r1 '(1d0 2.5d300) :r14 '("" "é") :r16 '(:blue 9) :p13 nil
                                    :m2 (list (cons 3 (clgrpc.test:make-inner :a 1)))
                                    :m3 '((t . "x") (nil . "y")) :m6 `((7 . ,(octets-of 9))))
                         (all :o1 (protobuf::double-nan)
                              :r2 (list sb-ext:single-float-negative-infinity))))
    (is (message= message (json-all (message-json message))))
    (is (message= message (parse-json-message 'clgrpc.test:all
                                              (message-json message :as :octets :indent 3
                                                                    :proto-names t))))
    (is (message= message (json-all (message-json message :enum-numbers t))))))

(test forms-of-numbers
  (loop for (text field value)
          in '(("{'f3':1e2}" :f3 100) ("{'f3':100.00}" :f3 100) ("{'f3':'-7'}" :f3 -7)
               ("{'f3':-0}" :f3 0) ("{'f4':-9223372036854775808}" :f4 -9223372036854775808)
               ("{'f6':'1.8446744073709551615e19'}" :f6 18446744073709551615)
               ("{'f1':'0.5'}" :f1 0.5d0) ("{'f1':-0}" :f1 -0d0) ("{'f1':3}" :f1 3d0)
               ("{'f2':3.4028235e38}" :f2 3.4028235f38)
               ("{'f2':1.00000017881393432617187499}" :f2 1.0000001f0)
               ("{'f16':5}" :f16 :blue) ("{'f16':'GREEN'}" :f16 :green) ("{'f16':17}" :f16 17)
               ("{'f15':'-_8'}" :f15 #(#xFB #xFF)) ("{'f15':'+/8='}" :f15 #(#xFB #xFF))
               ("{ 'f13' : true } " :f13 t) ("{'f3':null}" :f3 0)
               ("{'f14':'\\ud83d\\ude00'}" :f14 "😀"))
        do (is (equalp value (field-value (json-all text) field)) "~A" text)))

(test well-known-types-from-json
  (let ((message (json-holder "{'value':null,'values':[null,1,'a',true,[],{}],'nothing':null,'no':null,
     'struct':{'a':{'b':[1]}},'mask':'fooBar,b','wrapped':3,'octets':'AQ',
     'any':{'value':'1.5s','@type':'x/google.protobuf.Duration'},'other name':'n',
     'shapes':['bAz','CIRCULAR']}")))
    (is (equalp #(:null-value :number-value :string-value :bool-value :list-value :struct-value)
                (map 'vector #'google.protobuf:value-kind-case
                     (clgrpc.test.textual:holder-values message))))
    (is (eq :null-value
            (google.protobuf:value-kind-case (clgrpc.test.textual:holder-value message))))
    (is (eq :no (clgrpc.test.textual:holder-pick-case message)))
    (is (equalp #("foo_bar" "b") (google.protobuf:field-mask-paths
                                  (clgrpc.test.textual:holder-mask message))))
    (is (equal "n" (clgrpc.test.textual:holder-renamed message)))
    (is (equalp #(2 1) (map 'vector (lambda (shape) (enum-number "clgrpc.test.textual.Shape" shape))
                            (clgrpc.test.textual:holder-shapes message))))
    (is (message= message (json-holder (message-json message))))))

(defun json-refusal (reader text &rest options)
  "The line, column and path at which TEXT is refused, or the message."
  (handler-case (apply reader text options)
    (message-text-error (condition)
      (princ-to-string condition)
      (list (message-text-error-line condition) (message-text-error-column condition)
            (message-text-error-path condition)))))

(defun refusals (reader texts)
  "The errors of READER for TEXTS, which it refuses."
  (with-output-to-string (stream)
    (dolist (text texts)
      (handler-case (fail "~S is read: ~A" text (funcall reader text))
        (message-text-error (condition)
          (format stream "~A~%  ~A~%" (substitute #\| #\Newline text) condition))))))

(test json-refused
  "The place and the text of each error."
  (is (equal '(2 10 "f14") (json-refusal #'parse-json-message "clgrpc.test.All"
                                         (format nil "{~% \"f14\": ~C1}" #\Tab))))
  (support:check-record
   'refused-json
   (refusals #'json-all
             '("" "[]" "{" "{} x" "{'f3':1,}" "{'nope':1}" "{'f3':1,'f3':1}"
               "{'f3':2147483648}" "{'f3':1.5}" "{'f5':-1}" "{'f3':' 1'}" "{'f3':'1 '}"
               "{'f3':true}" "{'f13':'true'}" "{'f1':1e400}" "{'f2':3.5e38}" "{'f1':NaN}"
               "{'f16':'PINK'}" "{'f15':'*'}" "{'f14':1}" "{'f17':{'next':{'a':'x'}}}"
               "{'r3':[1,null]}" "{'m1':{'x':null}}" "{'m2':{'y':{}}}" "{'m3':{'no':''}}"
               "{'m1':{'a':1,'a':2}}" "{'p3':1,'p6':'2'}" "{'r3':{}}" "{'m1':[]}"
               "{'f14':'\\ud800'}")))
  (support:check-record
   'refused-well-known-json
   (refusals #'json-holder
             '("{'any':{'a':1}}" "{'any':{'@type':'x/no.such','a':1}}" "{'any':{'@type':''}}"
               "{'any':{'@type':'x/google.protobuf.Duration'}}"
               "{'any':{'@type':'x/google.protobuf.Duration','value':'1s','value':'1s'}}"
               "{'duration':'1'}" "{'mask':'a_b'}" "{'wrapped':{}}" "{'list':{}}"
               "{'struct':[]}"))))

(test unknown-members-ignored
  (is (message= (all :f3 1)
                (json-all "{'x':[{'y':[1,'\\u0041',null]}],'f3':1,'f16':'PINK'}"
                          :ignore-unknown t)))
  (is (equalp #(:red) (clgrpc.test:all-r16 (json-all "{'r16':['PINK','RED']}" :ignore-unknown t))))
  (is (listp (json-refusal #'json-all "{'x':tru}" :ignore-unknown t)) "the value must be JSON"))

(test closed-enums-in-json
  (flet ((try (text)
           (json-refusal #'parse-json-message "clgrpc.test.legacy.Legacy" (unquote text))))
    (is (listp (try "{'level':3,'needed':true}")))
    (is (protobuf:message-p (try "{'level':2,'needed':true,'part':{'size':1}}")))))

(test limits-of-json
  (flet ((nested (depth)
           (format nil "~{~A~}{}~{~A~}" (loop repeat depth collect "{\"next\":")
                   (loop repeat depth collect "}"))))
    (is (protobuf:message-p (parse-json-message "clgrpc.test.Inner" (nested 100))))
    (signals message-text-error (parse-json-message "clgrpc.test.Inner" (nested 101)))
    (signals message-text-error
      (parse-json-message "clgrpc.test.Inner" (nested 4) :max-message-depth 3))
    (signals message-text-error (parse-json-message "clgrpc.test.Inner" "{}" :max-octets 1)))
  (dolist (open '("{\"x\":" "[" "{\"struct\":{\"a\":" "{\"value\":["))
    (signals message-text-error
      (json-holder (apply #'concatenate 'string (loop repeat 5000 collect open))
                   :ignore-unknown t))))
