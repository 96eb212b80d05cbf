;;;; What those who read ranges are answered.

(in-package #:clgrpc.tests.memory)

(defun fruit ()
  "A store with some items."
  (let ((store (new-store)))
    (loop for (key value) in '(("pear" "3") ("apple" "2") ("plum" "1") ("apple" "4") ("fig" "2"))
          do (put store key :value value))
    store))

(defun answer-range (store request)
  "The answer of STORE to the RangeRequest with the arguments REQUEST."
  (funcall (memory::answer-range store (apply #'pb:make-range-request request))))

(defun ranged (store &rest request)
  "The keys that a RangeRequest of the arguments gets, whether there are more, and the count."
  (let ((response (answer-range store (loop for (name value) on request by #'cddr
                                            collect name
                                            collect (if (stringp value)
                                                        (string-octets value)
                                                        value)))))
    (list (map 'list (lambda (kv) (octets-string (mvccpb:key-value-key kv)))
               (pb:range-response-kvs response))
          (pb:range-response-more response)
          (pb:range-response-count response))))

(test ranges
  (let ((store (fruit)) (all (list :key (octets-of 0) :range-end (octets-of 0))))
    (flet ((all (&rest more) (apply #'ranged store (append all more))))
      (is (equal '(("fig") nil 1) (ranged store :key "fig")))
      (is (equal '(() nil 0) (ranged store :key "figs")))
      (is (equal '(("apple" "fig" "pear" "plum") nil 4) (all)))
      (is (equal '(("pear" "plum") nil 2) (ranged store :key "p" :range-end "q")))
      (is (equal '(("fig" "pear" "plum") nil 3) (ranged store :key "b" :range-end (octets-of 0))))
      (is (equal '(() nil 0) (ranged store :key "q" :range-end "p")))
      (is (equal '(("apple" "fig") t 4) (all :limit 2)))
      (is (equal '(("apple" "fig" "pear") t 4) (all :limit 3)))
      (is (equal '(("apple" "fig" "pear" "plum") nil 4) (all :limit 4)))
      (is (equal '(() nil 4) (all :count-only t)))
      (is (equal '(("pear" "plum" "apple" "fig") nil 4) (all :sort-target :mod)))
      (is (equal '(("fig" "plum") t 4) (all :sort-target :create :sort-order :descend :limit 2)))
      (is (equal '(("plum" "fig" "pear" "apple") nil 4)
                 (all :sort-target :value :sort-order :ascend)))
      (is (equal '(("plum" "pear" "fig" "apple") nil 4) (all :sort-order :descend)))
      ;; without an order the limit comes first
      (is (equal '(("fig" "pear") t 4) (all :sort-target :version :limit 2)))
      (is (equal '(("apple" "plum") nil 4) (all :min-mod-revision 4 :max-mod-revision 5)))
      (is (equal '(("apple" "pear" "plum") nil 3) (all :revision 4)))
      (is (equal '(("pear") nil 4) (all :max-create-revision 2)))
      (is (every (lambda (kv) (zerop (length (mvccpb:key-value-value kv))))
                 (pb:range-response-kvs
                  (answer-range store (list* :keys-only t all)))))
      (refused-with (:invalid-argument "etcdserver: key is not provided")
        (ranged store :range-end "a")))))
