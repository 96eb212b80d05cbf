;;;; Tables of routes, for any server.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.serving)

(defclass echoing (words:speaker) ())

(defmethod words.speaker:echo ((service echoing) request &key) request)

(defun routes-of (&rest arguments)
  (apply #'serving:make-routes :us (list (make-instance 'echoing)) #'serving::make-route
         arguments))

(defun route-named (table path)
  (gethash path (serving:route-table-routes table)))

(test a-table-has-a-route-for-each-method
  (let* ((before (routes-of :before (routes-of)))
         (table (routes-of :before before :interceptors '(car)))
         (route (route-named table "/words.Speaker/Echo"))
         (word (words:make-word :text "a")))
    (is (= 4 (hash-table-count (serving:route-table-routes table))))
    (is (= 3 (serving::route-table-epoch table) (serving::route-epoch route)))
    (is-true (serving:route-current-p route table))
    (is-false (serving:route-current-p route before))
    (is (eq :us (serving::route-server route)))
    (is (equal '(car) (serving::route-interceptors route)))
    (is (eq (method:stub-method 'words.speaker:echo) (serving::route-method route)))
    (is (eq word (funcall (method:binding-function (serving::route-binding route))
                          (serving::route-service route) word nil)))
    (is (search "Echo" (princ-to-string route)))
    (is (null (route-named table "/words.Listener/Hear")))
    (let ((unknown (serving:find-unknown-route table "/words.Listener/Hear")))
      (is (null (serving::route-method unknown)))
      (is-true (serving:route-current-p unknown table)))))

(test a-method-has-one-service
  (signals misuse
    (serving:make-routes :us (list (make-instance 'echoing) (make-instance 'words:speaker))
                         #'serving::make-route)))

(test long-answers-are-remembered-for-a-while
  (let ((route (route-named (routes-of) "/words.Speaker/Echo"))
        (long (* 2 rpc:+long-octets+)))
    (serving:note-answer route long)
    (is (= long (serving::route-long-octets route)))
    (serving:note-answer route (1+ rpc:+long-octets+))
    (is (= (* 3/4 long) (serving::route-long-octets route)))
    (loop repeat 2 do (serving:note-answer route))
    (is (= 0 (serving::route-long-octets route)))))
