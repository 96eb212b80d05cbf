;;;; What a node knows: changes, what it remembers of them, and what it has forgotten.

(in-package #:clgrpc.tests.cluster)

(defun generation (number &rest arguments)
  (apply #'member-of "a" :generation number arguments))

(test changes-of-a-name
  "What becomes of a name between two states of the store."
  (flet ((changes (former member)
           (mapcar (lambda (change)
                     (list (change-kind change) (member-generation (change-member change))))
                   (cluster::member-changes former member))))
    (is (equal '((:joined 1)) (changes nil (generation 1))))
    (is (equal '((:updated 1)) (changes (generation 1) (generation 1 :state :draining))))
    (is (equal '((:lost 1)) (changes (generation 1) nil)))
    (is (equal '((:left 1)) (changes (generation 1 :state :draining) nil)))
    (is (equal '((:lost 1) (:joined 2)) (changes (generation 1) (generation 2))))
    (is (equal '() (changes nil nil)))))

(test views-remember
  "A view tells what came from a revision on, until it has forgotten that."
  (let ((view (cluster::make-view)))
    (flet ((from (revision)
             (let ((changes (cluster::changes-from view revision)))
               (if (listp changes) (mapcar #'first changes) changes))))
      (is (equal '((:joined "a" 3))
                 (told-changes (cluster::note-snapshot view (list (generation 3)) 10))))
      (is (eq :forgotten (from 10)))
      (is (equal '() (from 11)))
      (cluster::note-event view "b" (member-of "b" :generation 12) 12)
      (cluster::note-event view "c" (member-of "c" :generation 12) 12)
      (cluster::note-event view "a" nil 15)
      (is (equal '("b" "c") (names (cluster::view-list view))))
      (is (= 15 (cluster::view-revision view)))
      (is (equal '(12 15) (from 11)))
      (is (equal '(15) (from 13)))
      (is (equal '() (from 16)))
      (is (equal '((:joined "b" 12) (:joined "c" 12))
                 (told-changes (rest (first (cluster::changes-from view 11))))))
      ;; it has room for so many
      (loop for revision from 16 below (+ 14 cluster::+remembered-revisions+)
            do (cluster::note-event view "a" (generation revision) revision))
      (is (= cluster::+remembered-revisions+ (length (from 11))))
      (cluster::note-event view "a" nil 5000)
      (is (eq :forgotten (from 12)))
      (is (= cluster::+remembered-revisions+ (length (from 13)))))))

(test snapshots-are-compared
  "After a break the differences are the changes, and nothing before it is remembered."
  (let ((view (cluster::make-view)))
    (cluster::note-snapshot view (list (generation 3) (member-of "b" :generation 4)
                                       (member-of "c" :generation 5))
                            10)
    (is (equal '((:lost "b" 4) (:lost "c" 5) (:joined "c" 11) (:joined "d" 12))
               (told-changes
                (cluster::note-snapshot view (list (generation 3) (member-of "c" :generation 11)
                                                   (member-of "d" :generation 12))
                                        20))))
    (is (eq :forgotten (cluster::changes-from view 15)))
    (is (equal '() (cluster::changes-from view 21)))))

(test a-mirror-s-errors-are-logged
  (with-stand-in (store other)
    (with-logged (events :cluster-watch-ended)
      (with-replaced (('etcd:mirror (lambda (function store take &key on-error &allow-other-keys)
                                      (declare (ignore function store take))
                                      (funcall on-error "broken"))))
        (clgrpc.cluster::follow-store (clgrpc.cluster::make-informer *etcd* "c")))
      (is (equal '((:warning :cluster-watch-ended :cluster "c" :condition "broken")) (events))))))
