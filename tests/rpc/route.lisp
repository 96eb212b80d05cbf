;;;; Tables of routes, whoever serves.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(defclass echoing (words:speaker) ())

(defmethod words.speaker:echo ((service echoing) request &key) request)

(defun routes-of (&rest arguments)
  (apply #'rpc:make-routes :us (list (make-instance 'echoing)) :auto #'rpc::make-route arguments))

(defun route-named (table path)
  (gethash path (rpc:route-table-routes table)))

(test a-table-has-a-route-for-each-method
  (let* ((table (routes-of :epoch 3 :interceptors '(car)))
         (route (route-named table "/words.Speaker/Echo"))
         (word (words:make-word :text "a")))
    (is (= 4 (hash-table-count (rpc:route-table-routes table))))
    (is (= 3 (rpc:route-table-epoch table) (rpc:route-epoch route)))
    (is (eq :us (rpc:route-server route)))
    (is (eq :auto (rpc:route-execution route)))
    (is (equal '(car) (rpc:route-interceptors route)))
    (is (eq (rpc:find-rpc-method 'words.speaker:echo) (rpc:route-method route)))
    (is (eq word (funcall (rpc:binding-function (rpc:route-binding route))
                          (rpc::route-service route) word nil)))
    (is (search "Echo" (princ-to-string route)))
    (is (null (route-named table "/words.Listener/Hear")))))

(test a-method-has-one-service
  (signals misuse
    (rpc:make-routes :us (list (make-instance 'echoing) (make-instance 'words:speaker)) :auto
                     #'rpc::make-route)))

(test an-execution-is-for-all-or-by-method
  (let ((table (rpc:make-routes :us (list (make-instance 'echoing))
                                '((words.speaker:echo . :inline)) #'rpc::make-route)))
    (is (eq :inline (rpc:route-execution (route-named table "/words.Speaker/Echo"))))
    (is (eq :auto (rpc:route-execution (route-named table "/words.Speaker/Spell")))))
  (signals misuse (rpc:execution-of :sometimes 'car)))

(test long-answers-are-remembered-for-a-while
  (let ((route (route-named (routes-of) "/words.Speaker/Echo"))
        (long (* 2 rpc:+long-octets+)))
    (rpc:note-long-answer route long)
    (is (= long (rpc:route-long-octets route)))
    (rpc:note-long-answer route (1+ rpc:+long-octets+))
    (is (= (* 3/4 long) (rpc:route-long-octets route)))
    (loop repeat 2 do (rpc:note-short-answer route))
    (is (= 0 (rpc:route-long-octets route)))))
