;;;; A server's report of its connections.

(in-package #:clgrpc.tests.server)

(test connections-are-reported-by-loop
  "In the order of the loops, each with its own connections."
  (with-probe (channel :server server :options '(:loops 3)) (:ask #'double)
    (ask channel (note 1))
    (let ((report (server:report-connections server)))
      (is (equal '("clgrpc server 1" "clgrpc server 2" "clgrpc server 3")
                 (mapcar (lambda (state) (getf state :name)) report)))
      (is (= 1 (reduce #'+ report :key (lambda (state) (getf state :connections)))))
      (is (= 1 (reduce #'+ report :key (lambda (state) (getf state :calls))))))))
