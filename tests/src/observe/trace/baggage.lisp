;;;; Baggage (W3C Baggage): its text, the user's view of it, and the calls that carry it.

(in-package #:clgrpc.tests.trace)

(defun told (&rest texts)
  "The baggage in headers baggage with TEXTS."
  (trace::baggage-alist (trace::read-baggage texts)))

(test baggage-that-is-right
  (is (equal '(("a" . "1") ("b" . "two words")) (told "a=1,b=two%20words")))
  (is (equal '(("a" . "1") ("b" . "2")) (told "a=1" "b=2")))
  (is (equal '(("a" . "1") ("b" . "2")) (told (format nil " a = 1 ;p ;q=3,~Cb=2" #\Tab))))
  (is (equal '(("a" . "x=y")) (told "a=x=y")))
  (is (equal '(("a" . "é")) (told "a=%C3%A9")))
  (is (null (told)))
  (is (string= "a=1;p;q=3,b=2" (trace::read-baggage '("a=1;p;q=3 , b=2")))
      "properties are passed on"))

(test a-baggage-that-was-read-is-read-again
  "The second reading gives the user's view, without checks of the members."
  (is (equal '(("a" . "") ("b" . "=;")) (told "a = ; p=1,, b= =%3B ")))
  (is (equal '(("a" . "1")) (told "a=1,b=%f,c=%")) "not percent-encoded")
  (is (string= "b=3,a=1;p" (trace::baggage-with "a=1;p,b=2 ;q" "b" "3")))
  (is (string= "a=1;p" (trace::baggage-with "a=1;p,b =2" "b" nil)))
  (is (string= "c=3" (trace::baggage-with "" "c" "3"))))

(test members-of-a-baggage-that-are-wrong-are-left-out
  (dolist (wrong (list "a" "=1" "a b=1" "é=1" "a=é" "a=b c" "a=\"1\"" "" ","
                       (format nil "a=1~Cb" (code-char 10))))
    (is (equal '(("z" . "1")) (told (concatenate 'string wrong ",z=1"))) "~S" wrong))
  (is (null (told "a=%ff")) "not UTF-8"))

(test no-more-of-a-baggage-goes-on-than-is-due
  (flet ((list-of (count value)
           (format nil "~{~A~^,~}" (loop for i below count collect (format nil "n~D=~A" i value)))))
    (is (= 64 (length (told (list-of 65 "x")))))
    (is (= 64 (length (told (list-of 64 "x")))))
    (let ((long (list-of 9 (repeated 1000 #\x))))
      (is (= 8 (length (told long))))
      (is (>= 8192 (length (trace::read-baggage (list long))))))
    (is (null (told (format nil "a=~A" (repeated 8192 #\x)))))
    (is (= 1 (length (told (format nil "a=~A" (repeated 8190 #\x))))))
    ;; of several headers, the comma between them counts
    (loop for (second-octets members) in '((4096 2) (4097 1))
          do (is (= members (length (told (format nil "a=~A" (repeated 4093 #\x))
                                          (format nil "b=~A" (repeated (- second-octets 2)
                                                                       #\x)))))))))

(defun extracted (&rest fields)
  "The baggage of a call with FIELDS, HPACK's, or nil."
  (let ((context (trace::extract '(:baggage) (coerce fields 'simple-vector))))
    (and context (trace::context-baggage context))))

(test a-baggage-that-is-repeated-is-read-once
  "By HPACK a peer can send a long one as one octet, in each request."
  (flet ((field (text) (clgrpc.hpack:string-field "baggage" text)))
    (let ((right (field "a=1 , b=2")) (junk (field (repeated 4000 #\,))) (more (field "c=3,,a=4")))
      (is (string= "a=1,b=2" (extracted right)))
      (is (eq (extracted right) (extracted right)))
      (is (null (extracted junk)))
      (is (string= "" (clgrpc.hpack:field-memo junk)))
      (is (string= "a=1,b=2,c=3,a=4" (extracted right junk more)))
      (is (null (extracted)))
      (let ((many (loop repeat 40 collect more)))
        (is (= 64 (length (trace::baggage-alist (apply #'extracted many)))))))))

(test baggage-of-several-headers-is-joined
  "It is joined up to the limit: no member is cut, and no member after an omitted one is passed on."
  (flet ((joined (&rest texts)
           (apply #'extracted
                  (mapcar (lambda (text) (clgrpc.hpack:string-field "baggage" text)) texts)))
         (member-of (length)            ; name and value have LENGTH characters
           (format nil "n=~A" (repeated (- length 2) #\x))))
    (is (string= "a=1,b=2" (joined "," "a=1" "" "b=2" "b")))
    (is (null (joined "," "")))
    (is (= 4096 (length (joined (member-of 2000) (member-of 2095)))))
    (is (= 2000 (length (joined (member-of 2000) (member-of 2096) "a=1"))))
    (is (= 2004 (length (joined (member-of 2000)
                                (format nil "a=1,~A,b=2" (member-of 2094))))))
    (flet ((many (name)
             (format nil "~{~A~^,~}" (loop for i below 40 collect (format nil "~A~D=1" name i)))))
      (is (= 64 (length (trace::baggage-alist (joined (many "a") (many "b") (many "c")))))))))

(defun carrying (place function &key (sampler :always-on))
  "The value of FUNCTION, called with a channel to a server at PLACE that answers with the number of
entries of its baggage, and with a function that returns the last baggage of a handler."
  (let ((seen '()))
    (with-traced (channel tracing :place place
                                  :tracing-options (:propagators '(:tracecontext :baggage)
                                                    :sampler sampler))
        (:ask (handling ()
                (setf seen (grpc:current-baggage))
                (note (length seen))))
      (funcall function channel (lambda () seen)))))

(test baggage-goes-with-calls
  "Over the wire and within the image, recorded or not, with a span around or without."
  (dolist (place '(:wire :image))
    (dolist (sampler '(:always-on :always-off (:trace-id-ratio 0)))
      (carrying place
                (lambda (channel seen)
                  (is (= 0 (number-of (ask channel (note 1)))))
                  (grpc:with-baggage ("user" "Ada, 7" "tier" "gold")
                    (is (= 2 (number-of (ask channel (note 1)))))
                    (is (equal "Ada, 7" (cdr (assoc "user" (funcall seen) :test #'string=))))
                    (is (null (grpc:current-trace)) "baggage alone begins no trace")
                    (grpc:with-span ("work")
                      (grpc:with-baggage ("tier" nil "user" "Bo")
                        (is (equal '(("user" . "Bo")) (grpc:current-baggage)))
                        (ask channel (note 1))
                        (is (equal '(("user" . "Bo")) (funcall seen))))
                      (is (= 2 (length (grpc:current-baggage))))))
                  (is (null (grpc:current-baggage))))
                :sampler sampler))))

(test baggage-begins-no-trace-of-its-own
  "A call made with baggage alone is the root of its trace."
  (dolist (place '(:wire :image))
    (with-traced (channel tracing :place place
                                  :tracing-options (:propagators '(:tracecontext :baggage)))
        (:ask #'double)
      (grpc:with-baggage ("a" "1") (ask channel (note 4)))
      (let* ((spans (drained tracing 3)) (sent (named "Sent." spans)))
        (is (null (parent-of sent)))
        (is-false (zerop (parse-integer (trace-of sent) :radix 16)))
        (is-true (child-p (named "Attempt." spans) sent))))))

(test a-header-of-baggage-hides-no-parent
  "A call with a user's own header of that name is nevertheless a child of its client's attempt."
  (dolist (place '(:wire :image))
    (with-traced (channel tracing :place place
                                  :tracing-options (:propagators '(:tracecontext :baggage)))
        (:ask #'double)
      (ask channel (note 4) :metadata '(("baggage" . "a=1")))
      (let ((spans (drained tracing 3)))
        (is-true (child-p (named "Recv." spans) (named "Attempt." spans)) "~A" place)))))

(test baggage-is-neither-sent-nor-read-unless-asked-for
  (let ((seen :nothing))
    (with-traced (channel tracing) (:ask (handling (request)
                                           (setf seen (grpc:current-baggage))
                                           request))
      (grpc:with-baggage ("a" "1") (ask channel (note 1)))
      (is (null seen))
      (ask channel (note 1) :metadata '(("baggage" . "a=1")))
      (is (null seen)))))

(test entries-that-no-baggage-takes
  (signals misuse (grpc:with-baggage ("two words" "1")))
  (signals misuse (grpc:with-baggage ("a" 1)))
  (signals misuse (grpc:with-baggage (:a "1"))))
